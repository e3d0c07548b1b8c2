"""The learner's state on disk: whole float32 tensors in safetensors files.

Each rank writes the parameters it is in charge of, so the writing is shared out and no rank holds
more than one parameter whole; what is written does not depend on the number of ranks or the ZeRO
stage, so any other layout can read it. Nothing is pickled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from rlnorm.files import write_with
from rlnorm.learner import zero


def save_learner_state(
    folder: Path,
    engine: Any,
    named: dict[str, nn.Parameter],
    rank: int,
    ranks: int,
    updates: int,
) -> None:
    """Write rank_NNNNN.safetensors: "weight/NAME", "exp_avg/NAME", "exp_avg_sq/NAME".

    Collective. `updates` is the number of optimizer steps made.
    """
    own: dict[str, Tensor] = {}
    for index, (name, parameter) in enumerate(named.items()):
        tensors = {"weight": zero.master_weight(parameter)}
        if updates:
            tensors |= {m: zero.moment(engine, parameter, m) for m in zero.MOMENTS}
        if index % ranks == rank:
            own |= {f"{kind}/{name}": t.cpu().contiguous() for kind, t in tensors.items()}
    own["updates"] = torch.tensor(updates)
    path = folder / f"rank_{rank:05d}.safetensors"
    write_with(path, lambda temporary: save_file(own, temporary))


def iterate_state(folder: Path, prefix: str) -> Any:
    """(name, tensor) of every entry of one kind ("weight", "exp_avg", "exp_avg_sq")."""
    for path in sorted(folder.glob("rank_*.safetensors")):
        with safe_open(path, "pt") as file:
            for key in file.keys():
                if key.startswith(f"{prefix}/"):
                    yield key.partition("/")[2], file.get_tensor(key)


def read_weights(folder: Path, model: nn.Module) -> None:
    """Load the saved weights into a model that is not sharded yet.

    Raises:
        ValueError: the checkpoint's parameters are not the model's.
    """
    parameters = dict(model.named_parameters())
    seen = set()
    with torch.no_grad():
        for name, tensor in iterate_state(folder, "weight"):
            if name not in parameters or parameters[name].shape != tensor.shape:
                raise ValueError(f"the checkpoint's parameter {name!r} does not fit the model")
            parameters[name].copy_(tensor)
            seen.add(name)
    missing = parameters.keys() - seen
    if missing:
        raise ValueError(
            f"the checkpoint lacks {len(missing)} parameters, such as {min(missing)!r}"
        )


def load_learner_state(folder: Path, engine: Any, named: dict[str, nn.Parameter], rank: int) -> int:
    """Fill optimizer state and float32 weights; returns the number of updates made.

    The optimizer's state must exist (one step of size 0 makes it).
    """
    files: dict[str, Any] = {}
    updates = 0
    for path in sorted(folder.glob("rank_*.safetensors")):
        file = safe_open(path, "pt")
        keys = file.keys()
        files |= dict.fromkeys(keys, file)
        updates = int(file.get_tensor("updates"))
    for name, parameter in named.items():
        weight = files[f"weight/{name}"].get_tensor(f"weight/{name}")
        moments = {
            kind: files[f"{kind}/{name}"].get_tensor(f"{kind}/{name}")
            if updates
            else torch.zeros_like(weight)
            for kind in zero.MOMENTS
        }
        device = engine.device
        zero.set_state(
            engine,
            parameter,
            weight.to(device),
            {kind: value.to(device) for kind, value in moments.items()},
            rank,
        )
    for counter in zero.optimizer_steps(engine):
        counter.fill_(updates)
    return updates

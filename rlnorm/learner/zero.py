"""Full parameters, gradients and optimizer states out of DeepSpeed's shards, and back in.

The one place that knows how ZeRO stages lay things out. All functions that return full tensors
are collective: every rank must call them, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

MOMENTS = ("exp_avg", "exp_avg_sq")


def deepspeed_config(
    *, zero_stage: int, dtype: torch.dtype, grad_clip: float, device: str
) -> dict[str, Any]:
    """DeepSpeed's settings. Accumulation is counted by us, so DeepSpeed is told of none."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": grad_clip,
        "steps_per_print": 1 << 60,
        "bf16": {"enabled": dtype == torch.bfloat16},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": zero_stage,
            "overlap_comm": device == "cuda",
            "contiguous_gradients": True,
        },
    }


def gathered(parameters: list[nn.Parameter]) -> AbstractContextManager[Any]:
    """Inside it the parameters are whole (ZeRO-3 gathers them); elsewhere they always are."""
    if any(hasattr(p, "ds_id") for p in parameters):
        import deepspeed

        return deepspeed.zero.GatheredParameters(parameters, modifier_rank=None)  # type: ignore
    return nullcontext()


def size_of(parameter: nn.Parameter) -> int:
    """Number of elements of the whole parameter, gathered or not."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def full_gradient(parameter: nn.Parameter) -> Tensor:
    """The whole averaged gradient, float32, after the last backward of an update."""
    from deepspeed.utils import safe_get_full_grad

    gradient = safe_get_full_grad(parameter)
    assert gradient is not None
    return gradient.detach().float()


def master_weight(parameter: nn.Parameter) -> Tensor:
    """The optimizer's float32 copy, whole."""
    from deepspeed.utils import safe_get_full_fp32_param

    full = safe_get_full_fp32_param(parameter)
    return (parameter.detach() if full is None else full.detach()).float()


def moment(engine: Any, parameter: nn.Parameter, name: str) -> Tensor:
    """AdamW's first or second moment, whole; the optimizer must have stepped once."""
    from deepspeed.utils import safe_get_full_optimizer_state

    full = safe_get_full_optimizer_state(parameter, name)
    if full is None:
        full = engine.optimizer.state[parameter][name]
    return full.detach().float()


def set_state(
    engine: Any, parameter: nn.Parameter, weight: Tensor, moments: dict[str, Tensor], rank: int
) -> None:
    """Put a whole float32 weight and its moments into this rank's shard."""
    from deepspeed.utils import (
        safe_get_local_fp32_param,
        safe_set_full_fp32_param,
        safe_set_full_optimizer_state,
        safe_set_local_fp32_param,
        safe_set_local_optimizer_state,
    )

    if hasattr(parameter, "ds_id"):
        size = safe_get_local_fp32_param(parameter).numel()

        def shard(full: Tensor) -> Tensor:
            part = full.flatten()[rank * size : (rank + 1) * size]
            return nn.functional.pad(part, (0, size - part.numel()))

        safe_set_local_fp32_param(parameter, shard(weight))
        for name, value in moments.items():
            safe_set_local_optimizer_state(parameter, shard(value), name)
    elif hasattr(parameter, "_hp_mapping"):
        safe_set_full_fp32_param(parameter, weight)
        for name, value in moments.items():
            safe_set_full_optimizer_state(parameter, value, name)
    else:
        parameter.data.copy_(weight)
        for name, value in moments.items():
            engine.optimizer.state[parameter][name].copy_(value)


def optimizer_steps(engine: Any) -> Iterator[Tensor]:
    """AdamW's step counters (one per flat shard or parameter), to read or set in place."""
    optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    for state in optimizer.state.values():
        if "step" in state:
            yield state["step"]

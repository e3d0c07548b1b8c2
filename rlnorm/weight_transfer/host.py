"""vLLM weight-transfer backend through host memory: works without a GPU.

Each bucket of weights arrives as a safetensors file in shared memory (or any folder); the engine
maps it and loads it. Importing this module registers the backend with vLLM's factory, which must
happen in the engine's worker process: rollout workers name `HostWorkerExtension` as vLLM's
`worker_extension_cls` for that. Only the receiving side lives here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from rlnorm.weight_transfer import HOST_BACKEND


@dataclass
class HostInitInfo(WeightTransferInitInfo):
    """Nothing has to be agreed on before the first transfer."""


@dataclass
class HostUpdateInfo(WeightTransferUpdateInfo):
    """One bucket of weights."""

    path: str
    """safetensors file with Hugging Face parameter names."""


class HostWeightTransferEngine(WeightTransferEngine[HostInitInfo, HostUpdateInfo]):
    """Receives checkpoint-format weights from files in host memory."""

    init_info_cls = HostInitInfo
    update_info_cls = HostUpdateInfo

    def init_transfer_engine(self, init_info: HostInitInfo) -> None:
        self._loaded: set[str] = set()

    def start_weight_update(self) -> None:
        """Undo the packing vLLM does after loading, so that weights can be loaded again."""
        self._loaded = set()
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class, without its device synchronization, which needs an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: HostUpdateInfo) -> None:
        loaded = self.model.load_weights(  # type: ignore[operator]
            iter(load_file(update_info.path).items())
        )
        self._loaded.update(loaded or ())

    def finish_weight_update(self) -> None:
        """Pack again; refuse an update that left a parameter with its old value."""
        finalize_layerwise_reload(self.model, self.model_config)
        expected = {name for name, _ in self.model.named_parameters()}
        missing = {name for name in expected - self._loaded if not self._tied(name)}
        if missing:
            raise RuntimeError(
                f"weight update left {len(missing)} parameters as they were, such as "
                f"{sorted(missing)[0]!r}"
            )

    def _tied(self, name: str) -> bool:
        config = self.model_config.hf_config
        return name.startswith("lm_head.") and getattr(config, "tie_word_embeddings", False)

    def shutdown(self) -> None:
        """Holds nothing between updates."""


class HostWorkerExtension:
    """Names this module to vLLM's worker processes, so that they import and register it."""


WeightTransferEngineFactory.register_engine(HOST_BACKEND, HostWeightTransferEngine)

"""The rollout worker: one vLLM engine (AsyncLLM) in a Ray actor, driven by an environment.

Only sampling and receiving weights live here; which prompts, and what the responses are worth,
is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlnorm.data import PromptDataset
from rlnorm.environments import Generation, Prompt, Transcript, build_environment
from rlnorm.episode import Episode, EpisodeBlock
from rlnorm.rollout.sampling import Request, Sampling
from rlnorm.weight_transfer import HOST_BACKEND


@dataclass(frozen=True)
class EngineSpec:
    """What a worker needs to start its engine."""

    model: str
    tokenizer: str
    trust_remote_code: bool
    environment: str
    environment_settings: dict[str, Any]
    episode_timeout_s: float
    device: str
    dtype: str
    max_length: int
    tensor_parallel: int
    kv_cache_gib: int
    gpu_memory_utilization: float
    max_sequences: int
    enforce_eager: bool


class RolloutWorker:
    """Ray actor; start it with `start`, then call `sample` and the weight methods in turn."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.weight_version = 0
        self._datasets: dict[str, PromptDataset] = {}

    async def start(self) -> str:
        """Start the engine; returns the vLLM version."""
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
        import vllm
        from transformers import AutoTokenizer
        from vllm import AsyncEngineArgs
        from vllm.config.weight_transfer import WeightTransferConfig
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest
        from vllm.v1.engine.async_llm import AsyncLLM

        import rlnorm.weight_transfer.host  # noqa: F401  (registers the backend here too)

        spec = self.spec
        on_cpu = spec.device == "cpu"
        arguments: dict[str, Any] = {
            "model": spec.model,
            "tokenizer": spec.tokenizer,
            "trust_remote_code": spec.trust_remote_code,
            "dtype": spec.dtype,
            "max_model_len": spec.max_length,
            "max_num_seqs": spec.max_sequences,
            "tensor_parallel_size": spec.tensor_parallel,
            "enforce_eager": spec.enforce_eager,
            # log-probs at the sampling temperature: what the learner recomputes
            "logprobs_mode": "processed_logprobs",
            # the model's own generation_config.json must not change how training samples
            "generation_config": "vllm",
            "enable_log_requests": False,
            "disable_log_stats": True,
            "weight_transfer_config": WeightTransferConfig(backend=HOST_BACKEND),
            "worker_extension_cls": "rlnorm.weight_transfer.host.HostWorkerExtension",
        }
        if on_cpu:
            # vLLM takes back the random draw of a half-done prompt, which a CPU generator cannot
            arguments["enable_chunked_prefill"] = False
            arguments["max_num_batched_tokens"] = max(8192, spec.max_length)
        else:
            arguments["gpu_memory_utilization"] = spec.gpu_memory_utilization
        try:
            self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        except ValueError as error:
            # pydantic's errors cannot be sent to the driver, which would hide what is wrong
            raise RuntimeError(" ".join(str(error).split())) from None
        self.tokenizer = AutoTokenizer.from_pretrained(
            spec.tokenizer, trust_remote_code=spec.trust_remote_code
        )
        await self.engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info={}))
        self.environment = build_environment(spec.environment, spec.environment_settings)
        await self.environment.start()
        return str(vllm.__version__)

    async def set_dataset(self, name: str, dataset: PromptDataset) -> None:
        """Keep a dataset, so that requests need only name its rows."""
        self._datasets[name] = dataset

    async def sample(
        self, dataset: str, requests: list[Request], sampling: Sampling
    ) -> EpisodeBlock:
        """Play one episode per request; the block is in the order of the requests.

        The scheduler is held until every request is in its queue: batches are then composed the
        same way in every run, and with them the last bits of the log-probs.
        """
        prompts = self._datasets[dataset]
        turns = _Turns(self.engine, self.tokenizer, sampling, self.weight_version, len(requests))
        await self.engine.pause_generation(mode="keep", clear_cache=False)
        players = [
            asyncio.ensure_future(
                self._play(
                    Prompt(
                        group=request.group,
                        sample=request.sample,
                        row=prompts.row[request.row],
                        prompt_ids=prompts.prompt_ids[request.row],
                        question=prompts.question[request.row],
                        answer=prompts.answer[request.row],
                        seed=request.seed,
                    ),
                    turns,
                )
            )
            for request in requests
        ]
        try:
            queued = asyncio.ensure_future(turns.all_queued.wait())
            await asyncio.wait([queued, *players], return_when=asyncio.FIRST_COMPLETED)
            queued.cancel()
            await self.engine.resume_generation()
            return EpisodeBlock.of(list(await asyncio.gather(*players)))
        except BaseException:
            for player in players:
                player.cancel()
            raise

    async def _play(self, prompt: Prompt, turns: _Turns) -> Episode:
        """One episode. What the environment raises costs this episode; what the engine raises is
        the engine's, and ends the round."""
        transcript = Transcript(prompt, turns, turns.sampling.max_tokens)
        try:
            async with asyncio.timeout(self.spec.episode_timeout_s):
                await self.environment.play(transcript)
            return transcript.episode()
        except Exception:
            if turns.failure is not None:
                raise turns.failure from None
            return transcript.failed(traceback.format_exc())

    async def begin_weight_update(self) -> None:
        """Stop sampling and make the engine ready to load weights."""
        await self.engine.pause_generation(mode="wait")
        await self.engine.start_weight_update()

    async def load_bucket(self, bucket: npt.NDArray[np.uint8]) -> None:
        """Load one bucket: the bytes of a safetensors file, as they came through the object
        store; they reach the engine's processes as a file in shared memory."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        shared = Path("/dev/shm")
        folder = str(shared) if shared.is_dir() and os.access(shared, os.W_OK) else None
        handle, path = tempfile.mkstemp(prefix="rlnorm-weights-", dir=folder)
        os.close(handle)
        try:
            bucket.tofile(path)
            await self.engine.update_weights(WeightTransferUpdateRequest({"path": path}))
        finally:
            os.unlink(path)

    async def finish_weight_update(self, version: int) -> int:
        """Put the new weights to use under this version; returns the engine's own answer."""
        await self.engine.finish_weight_update(str(version))
        if not await self.engine.reset_prefix_cache():
            raise RuntimeError("vLLM did not reset its prefix cache after the weight update")
        await self.engine.resume_generation()
        self.weight_version = version
        return int(await self.engine.get_weight_version())

    async def stop(self) -> None:
        """End the engine's processes."""
        self.engine.shutdown()


class _Turns:
    """The engine as the environments of one round see it."""

    def __init__(
        self, engine: Any, tokenizer: Any, sampling: Sampling, version: int, expected: int
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.version = version
        self.expected = expected
        self.queued = 0
        self.failure: Exception | None = None
        self.all_queued = asyncio.Event()
        # requests enter the engine one after the other, in the order of the episodes
        self.entrance = asyncio.Lock()

    async def generate(
        self, token_ids: list[int], max_tokens: int, seed: int, stop: Sequence[str] = ()
    ) -> Generation:
        try:
            return await self._generate(token_ids, max_tokens, seed, [*self.sampling.stop, *stop])
        except Exception as error:
            self.failure = error
            raise

    async def _generate(
        self, token_ids: list[int], max_tokens: int, seed: int, stop: list[str]
    ) -> Generation:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        settings = self.sampling
        parameters = SamplingParams(
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            max_tokens=max_tokens,
            seed=seed,
            logprobs=0,
            stop=stop or None,
            include_stop_str_in_output=bool(stop),
            detokenize=bool(stop),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        async with self.entrance:
            self.queued += 1
            name = f"{self.version}-{id(self)}-{self.queued}"
            collector = await self.engine.add_request(name, tokens_input(token_ids), parameters)
        if self.queued >= self.expected:
            self.all_queued.set()
        try:
            output = await collector.get()
            while not output.finished:
                output = await collector.get()
        except asyncio.CancelledError:
            await self.engine.abort(name)
            raise
        completion = output.outputs[0]
        ids = list(completion.token_ids)
        logprobs = [
            float(step[token].logprob) for step, token in zip(completion.logprobs, ids, strict=True)
        ]
        if not all(map(math.isfinite, logprobs)):
            raise RuntimeError("vLLM gave a log-prob that is not finite")
        return Generation(ids, logprobs, completion.finish_reason == "length", self.version)

    def encode(self, text: str) -> list[int]:
        return list(map(int, self.tokenizer(text, add_special_tokens=False)["input_ids"]))

    def decode(self, token_ids: list[int]) -> str:
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=True))

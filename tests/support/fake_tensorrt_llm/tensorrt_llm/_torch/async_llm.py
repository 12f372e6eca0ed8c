"""The asynchronous engine: one model of transformers, one token at a time."""

import asyncio
import importlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tensorrt_llm.llmapi import KvCacheConfig, SleepConfig
from tensorrt_llm.llmapi.rlhf_utils import WorkerExtension
from tensorrt_llm.sampling_params import LogprobMode, SamplingParams
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

_MEMORY = {"kv_cache", "model"}


class EngineDeadError(RuntimeError):
    """The engine's processes have ended."""


@dataclass
class Completion:
    """One response: its ids, and the log-probability of each; those of the prompt, and of the first id."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)


class PendingResult:
    """A request that runs."""

    def __init__(self, task: asyncio.Task[Completion]) -> None:
        self._task = task

    async def aresult(self) -> Any:
        return SimpleNamespace(outputs=[await self._task])

    def abort(self) -> None:
        self._task.cancel()


class _ModelLoader:
    def reload(self, model: torch.nn.Module, weights: dict[str, Tensor], allow_partial_loading: bool) -> None:
        assert allow_partial_loading and model.first_pre_reload_weights
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, weight in weights.items():
                parameters[name].copy_(weight)


class AsyncLLM:
    """The engine. Its one worker is in this process."""

    def __init__(
        self,
        *,
        model: str,
        tokenizer: str,
        load_format: str,
        dtype: str,
        max_seq_len: int,
        max_batch_size: int,
        tensor_parallel_size: int,
        pipeline_parallel_size: int,
        orchestrator_type: str,
        ray_worker_extension_cls: str,
        kv_cache_config: KvCacheConfig,
        sleep_config: SleepConfig | None = None,
    ) -> None:
        assert (load_format, dtype, orchestrator_type) == ("dummy", "float32", "ray")
        assert tensor_parallel_size == pipeline_parallel_size == 1 and kv_cache_config.enable_block_reuse
        make: Any = AutoModelForCausalLM
        self._model = make.from_config(AutoConfig.from_pretrained(model)).eval()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(Path(tokenizer))
        self._context = max_seq_len
        self._slots = asyncio.Semaphore(max_batch_size)
        self._may_sleep = sleep_config is not None
        self._asleep = self._set_up = self._dead = False
        loader = SimpleNamespace(model=self._model, model_loader=_ModelLoader())
        module, _, name = ray_worker_extension_cls.rpartition(".")
        self.worker: WorkerExtension = getattr(importlib.import_module(module), name)()
        self.worker.engine = SimpleNamespace(model_engine=loader, prefix_resets=0)

    async def setup_async(self) -> None:
        self._set_up = True

    def die(self) -> None:
        """End as an engine whose processes were killed."""
        self._dead = True

    def generate_async(
        self, inputs: list[int], sampling_params: SamplingParams, streaming: bool
    ) -> PendingResult:
        assert self._set_up and not streaming
        return PendingResult(asyncio.create_task(self._generate(inputs, sampling_params)))

    async def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        self._check_alive()
        return [getattr(self.worker, method)(*args)]

    async def release(self, tags: list[str]) -> None:
        assert self._may_sleep and set(tags) == _MEMORY
        self._asleep = True
        self._fill(torch.nan)

    async def resume(self, tags: list[str]) -> None:
        assert self._asleep and set(tags) == _MEMORY
        self._asleep = False

    def shutdown(self) -> None:
        self._set_up = False

    def _fill(self, value: float) -> None:
        with torch.no_grad():
            for parameter in self._model.parameters():
                parameter.fill_(value)

    def _check_alive(self) -> None:
        if self._dead:
            raise EngineDeadError("its processes have ended")
        if self._asleep:
            raise RuntimeError("the memory is released")

    async def _generate(self, prompt: list[int], sampling: SamplingParams) -> Completion:
        assert len(prompt) + sampling.max_tokens <= self._context + 1
        source = torch.Generator().manual_seed(sampling.seed or 0)
        completion = Completion()
        async with self._slots:
            if sampling.prompt_logprobs is not None:
                completion.prompt_logprobs = self._prompt_logprobs(prompt)
            while not self._has_ended(completion.token_ids, sampling):
                # Requests run side by side.
                await asyncio.sleep(0)
                self._check_alive()
                logits = self._logits([*prompt, *completion.token_ids])[-1]
                processed = _process(logits, sampling, len(completion.token_ids))
                token = int(torch.multinomial(processed.exp(), 1, generator=source))
                reported = processed if sampling.logprobs_mode is LogprobMode.PROCESSED else logits
                completion.token_ids.append(token)
                completion.logprobs.append(float(reported.log_softmax(0)[token]))
        return completion

    def _logits(self, tokens: list[int]) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self._model(torch.tensor([tokens])).logits[0]
        return logits.double()

    def _prompt_logprobs(self, prompt: list[int]) -> list[float]:
        """Return the log-probability of each token after the first, and of the likeliest next one."""
        logprobs = self._logits(prompt).log_softmax(1)
        given = logprobs[:-1].gather(1, torch.tensor(prompt[1:], dtype=torch.long)[:, None])[:, 0].tolist()
        return [*given, float(logprobs[-1].max())]

    def _has_ended(self, tokens: list[int], sampling: SamplingParams) -> bool:
        if not tokens:
            return False
        text = self._tokenizer.decode(tokens, skip_special_tokens=sampling.skip_special_tokens)
        return (
            len(tokens) >= sampling.max_tokens
            or tokens[-1] in _ends(sampling)
            or any(stop in text for stop in sampling.stop or ())
        )


def _ends(sampling: SamplingParams) -> set[int]:
    return {token for token in (sampling.end_id, *(sampling.stop_token_ids or ())) if token not in (None, -1)}


def _process(logits: Tensor, sampling: SamplingParams, position: int) -> Tensor:
    """Return the log-probabilities of the distribution that a token is drawn from."""
    logits = logits / (sampling.temperature or 1.0)
    if position < (sampling.min_tokens or 0):
        logits = _forbid(logits, _ends(sampling))
    order = logits.argsort(descending=True).tolist()
    if sampling.top_k:
        logits = _forbid(logits, order[sampling.top_k :])
    if sampling.top_p is not None:
        mass = logits.softmax(0)[order].cumsum(0)
        logits = _forbid(logits, order[int((mass < sampling.top_p).sum()) + 1 :])
    return logits.log_softmax(0)


def _forbid(logits: Tensor, tokens: Iterable[int]) -> Tensor:
    return logits.index_fill(0, torch.tensor(sorted(tokens), dtype=torch.long), -torch.inf)

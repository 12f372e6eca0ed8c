"""TensorRT-LLM's asynchronous engine as an `ExternalEngine`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubealign.spec.sections.engines import TensorRTLLMEngineSpec
from kubealign_services.generation.contract import SamplingParameters
from kubealign_services.generation.external.contract import ExternalEngineDied, ExternalSample
from kubealign_services.generation.external.tensorrt_llm.parameters import (
    cache_arguments,
    engine_arguments,
    releases_memory,
    sampling_arguments,
)
from kubealign_services.runtime.process.failures import PermanentFailure

# TensorRT-LLM's tags of the memory that is released.
_MEMORY_TAGS = ["kv_cache", "model"]


class TensorRTLLMExternalEngine:
    """An ExternalEngine over TensorRT-LLM's AsyncLLM. Use `create`."""

    scores_at_any_temperature = False

    def __init__(self, engine: Any, library: Any) -> None:
        """Wrap a running engine.

        Args:
            engine: An AsyncLLM.
            library: The tensorrt_llm package.
        """
        self._engine = engine
        self._library = library

    @classmethod
    async def create(
        cls, folder: Path, spec: TensorRTLLMEngineSpec, context: int
    ) -> "TensorRTLLMExternalEngine":
        """Start the engine, without usable weights until the first are loaded.

        Raises PermanentFailure where TensorRT-LLM is not installed.
        """
        try:
            import tensorrt_llm
            from tensorrt_llm._torch.async_llm import AsyncLLM
            from tensorrt_llm.llmapi import KvCacheConfig
        except ImportError as error:
            raise PermanentFailure(
                f"rollout.engine.tensorrtLLM: TensorRT-LLM cannot be imported here ({error}): use an image "
                "that has it, such as NVIDIA's own, or set rollout.engine.torch"
            ) from error
        arguments = engine_arguments(folder, spec, context)
        if releases_memory(spec):
            from tensorrt_llm.llmapi import SleepConfig

            arguments["sleep_config"] = SleepConfig()
        engine = AsyncLLM(**arguments, kv_cache_config=KvCacheConfig(**cache_arguments(spec)))
        await engine.setup_async()
        return cls(engine, tensorrt_llm)

    async def generate(
        self, request_id: str, prompt: list[int], sampling: SamplingParameters, seed: int, ends: list[int]
    ) -> ExternalSample:
        from tensorrt_llm.sampling_params import LogprobMode

        # Greedy sampling is top-k of 1, after which the processed distribution is a point.
        mode = LogprobMode.RAW if sampling.temperature == 0 else LogprobMode.PROCESSED
        parameters = self._library.SamplingParams(
            **sampling_arguments(sampling, seed, ends), logprobs_mode=mode
        )
        return to_external_sample((await self._generate(prompt, parameters)).outputs[0])

    async def score(self, request_id: str, tokens: list[int], temperature: float = 1.0) -> list[float]:
        """Raises ValueError for a temperature other than 1."""
        if temperature != 1:
            raise ValueError(f"TensorRT-LLM scores at temperature 1 only, not at {temperature}")
        parameters = self._library.SamplingParams(max_tokens=1, top_k=1, prompt_logprobs=0, detokenize=False)
        result = await self._generate(tokens, parameters)
        logprobs = result.outputs[0].prompt_logprobs
        # One entry for each token after the first; the entry of the generated token is left out.
        return token_logprobs(tokens[1:], logprobs[: len(tokens) - 1])

    async def _generate(self, tokens: list[int], parameters: Any) -> Any:
        pending = self._engine.generate_async(tokens, parameters, streaming=False)
        with _death_reported():
            try:
                return await pending.aresult()
            except BaseException:
                pending.abort()
                raise

    async def load_weights(self, file: Path) -> None:
        with _death_reported():
            await self._engine.collective_rpc("kubealign_load_weights", args=(str(file),))

    async def finish_weight_update(self) -> None:
        # Also drops the cached prefixes.
        with _death_reported():
            await self._engine.collective_rpc("update_weights", args=(None,))

    async def release_memory(self) -> None:
        with _death_reported():
            await self._engine.release(_MEMORY_TAGS)

    async def resume_memory(self) -> None:
        with _death_reported():
            await self._engine.resume(_MEMORY_TAGS)

    async def close(self) -> None:
        self._engine.shutdown()


@contextmanager
def _death_reported() -> Iterator[None]:
    """Raise ExternalEngineDied where TensorRT-LLM says within the block that its engine has died."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ in ("EngineDeadError", "RayActorError", "ActorDiedError"):
            raise ExternalEngineDied(f"TensorRT-LLM's engine has died: {error}") from error
        raise


def to_external_sample(completion: Any) -> ExternalSample:
    """Convert a CompletionOutput that was requested with `logprobs` 0.

    Raises ValueError where a log-probability is missing.
    """
    tokens = [int(token) for token in completion.token_ids]
    return ExternalSample(tokens, token_logprobs(tokens, completion.logprobs))


def token_logprobs(
    tokens: Sequence[int], logprobs: Sequence[Mapping[int, Any] | float] | None
) -> list[float]:
    """Return the log-probability of each token, reported as a number or among the entries of its position."""
    if logprobs is None or len(logprobs) != len(tokens):
        count = "none" if logprobs is None else len(logprobs)
        raise ValueError(f"{len(tokens)} tokens came with {count} log-probabilities")
    result = []
    for position, (token, entry) in enumerate(zip(tokens, logprobs, strict=True)):
        if isinstance(entry, Mapping):
            if token not in entry:
                raise ValueError(f"token {token} at position {position} came without its log-probability")
            result.append(float(entry[token].logprob))
        else:
            result.append(float(entry))
    return result

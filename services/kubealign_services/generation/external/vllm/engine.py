"""vLLM's asynchronous engine as an `ExternalEngine`."""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubealign.spec.sections.engines import VllmEngineSpec
from kubealign_services.generation.contract import SamplingParameters
from kubealign_services.generation.external.contract import ExternalEngineDied, ExternalSample
from kubealign_services.generation.external.vllm.extension_names import SCORING_TEMPERATURE
from kubealign_services.generation.external.vllm.parameters import (
    TargetLayers,
    engine_arguments,
    library_variables,
    sampling_arguments,
)
from kubealign_services.runtime.process.failures import PermanentFailure

# Level 2 discards the weights too: the next ones come from files.
_SLEEP_LEVEL = 2


class VllmExternalEngine:
    """An AdapterEngine over vLLM's AsyncLLM. Use `create`."""

    def __init__(self, engine: Any, library: Any, *, on_cpu: bool) -> None:
        """Wrap a running engine.

        Args:
            engine: An AsyncLLM.
            library: The vllm package.
        """
        self._engine = engine
        self._library = library
        self._on_cpu = on_cpu
        self.scores_at_any_temperature = False
        #: LoRARequest of the adapter.
        self._adapter: Any = None
        self._adapter_count = 0

    @classmethod
    async def create(
        cls, folder: Path, spec: VllmEngineSpec, context: int, adapter: TargetLayers | None = None
    ) -> "VllmExternalEngine":
        """Start the engine, without usable weights until the first are loaded.

        Raises PermanentFailure where vLLM is not installed, or cannot do what the spec asks for.

        Args:
            adapter: The layers that the engine is to adapt itself.
        """
        # A start takes a minute or more, in which the worker shows that it lives.
        running, library, on_cpu = await asyncio.to_thread(_start, folder, spec, context, adapter)
        engine = cls(running, library, on_cpu=on_cpu)
        try:
            await engine._read_abilities(adapter)
        except BaseException:
            await engine.close()
            raise
        return engine

    async def _read_abilities(self, adapter: TargetLayers | None) -> None:
        self.scores_at_any_temperature = all(await self._call("kubealign_scores_at_any_temperature"))
        if adapter is not None:
            by_worker = await self._call("kubealign_adaptable_layers")
            check_adaptable(adapter, {layer for layers in by_worker for layer in layers})

    async def _call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of the extension in each worker."""
        with _death_reported():
            return list(await self._engine.collective_rpc(method, args=arguments))

    async def generate(
        self, request_id: str, prompt: list[int], sampling: SamplingParameters, seed: int, ends: list[int]
    ) -> ExternalSample:
        parameters = self._library.SamplingParams(
            **sampling_arguments(sampling, seed, ends),
            output_kind=self._library.sampling_params.RequestOutputKind.FINAL_ONLY,
        )
        return to_external_sample((await self._final_output(request_id, prompt, parameters)).outputs[0])

    async def score(self, request_id: str, tokens: list[int], temperature: float = 1.0) -> list[float]:
        parameters = self._library.SamplingParams(
            max_tokens=1,
            temperature=0.0,
            prompt_logprobs=0,
            detokenize=False,
            extra_args={SCORING_TEMPERATURE: temperature},
        )
        output = await self._final_output(request_id, tokens, parameters)
        # The first token follows no token, so it has no log-probability.
        return token_logprobs(tokens[1:], output.prompt_logprobs[1:])

    async def _final_output(self, request_id: str, tokens: list[int], parameters: Any) -> Any:
        output = None
        with _death_reported():
            async for output in self._engine.generate(  # noqa: B007 (the last one counts)
                {"prompt_token_ids": tokens}, parameters, request_id, lora_request=self._adapter
            ):
                pass
        if output is None:
            raise ExternalEngineDied(f"vLLM ended request {request_id} without an output")
        return output

    async def load_weights(self, file: Path) -> None:
        await self._call("kubealign_load_weights", str(file))

    async def finish_weight_update(self) -> None:
        with _death_reported():
            await self._engine.reset_prefix_cache()

    async def load_adapter(self, folder: Path) -> None:
        await self.drop_adapter()
        # vLLM knows an adapter by its number, and its cached prefixes by the adapter's name and folder.
        self._adapter_count += 1
        adapter = self._library.lora.request.LoRARequest(
            f"adapter-{self._adapter_count}", self._adapter_count, str(folder)
        )
        with _death_reported():
            await self._engine.add_lora(adapter)
        self._adapter = adapter

    async def drop_adapter(self) -> None:
        if self._adapter is not None:
            number, self._adapter = self._adapter.lora_int_id, None
            with _death_reported():
                await self._engine.remove_lora(number)

    async def release_memory(self) -> None:
        # vLLM would use the adapter's lost memory again under the same number.
        await self.drop_adapter()
        if self._on_cpu:
            await self._call("kubealign_release_host_memory")
            return
        with _death_reported():
            await self._engine.sleep(level=_SLEEP_LEVEL)

    async def resume_memory(self) -> None:
        # On a CPU memory is allocated where it is written.
        if not self._on_cpu:
            with _death_reported():
                await self._engine.wake_up()

    async def close(self) -> None:
        # It waits for the engine's processes.
        await asyncio.to_thread(self._engine.shutdown)


@contextmanager
def _death_reported() -> Iterator[None]:
    """Raise ExternalEngineDied where vLLM says within the block that its engine has died."""
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        yield
    except EngineDeadError as error:
        raise ExternalEngineDied(f"vLLM's engine has died: {error}") from error


def _start(
    folder: Path, spec: VllmEngineSpec, context: int, adapter: TargetLayers | None
) -> tuple[Any, Any, bool]:
    """Return a running AsyncLLM, the vllm package, and whether the engine runs on a CPU; see
    `VllmExternalEngine.create`.
    """
    try:
        import vllm.lora.request
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as error:
        raise PermanentFailure(
            f"rollout.engine.vllm: vLLM cannot be imported here ({error}): create its environment as "
            "docs/engines.md describes, name one in KUBEALIGN_VLLM, use an image that has one, or set "
            "rollout.engine.torch"
        ) from error
    on_cpu = current_platform.is_cpu()
    try:
        arguments = engine_arguments(folder, spec, context, on_cpu=on_cpu, adapter=adapter)
    except ValueError as error:
        raise PermanentFailure(str(error)) from error
    os.environ.update(library_variables(spec, on_cpu=on_cpu) | os.environ)
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments)), vllm, on_cpu


def check_adaptable(adapter: TargetLayers, adaptable: Set[str]) -> None:
    """Raise PermanentFailure for layers that vLLM cannot apply an adapter to.

    Args:
        adaptable: Last parts of the names of the layers that it can apply one to.
    """
    refused = sorted(set(adapter.suffixes) - adaptable)
    if refused:
        raise PermanentFailure(
            "rollout.engine.vllm.adapters is Native, and vLLM cannot apply an adapter to the layers "
            f"{', '.join(refused)} of this model, only to {', '.join(sorted(adaptable))}: set Merged, or "
            "leave them out of trainer.lora.targets"
        )


def to_external_sample(completion: Any) -> ExternalSample:
    """Convert a vLLM CompletionOutput that was requested with `logprobs` 0, so it has the log-probability of
    each token.

    Raises ValueError where a log-probability is missing.
    """
    tokens = [int(token) for token in completion.token_ids]
    return ExternalSample(tokens, token_logprobs(tokens, completion.logprobs))


def token_logprobs(tokens: Sequence[int], logprobs: Sequence[Mapping[int, Any] | None] | None) -> list[float]:
    """Return the log-probability of each token from the entries reported at its position."""
    if logprobs is None or len(logprobs) != len(tokens):
        count = "none" if logprobs is None else len(logprobs)
        raise ValueError(f"{len(tokens)} tokens came with {count} log-probabilities")
    result = []
    for position, (token, entries) in enumerate(zip(tokens, logprobs, strict=True)):
        if entries is None or token not in entries:
            raise ValueError(f"token {token} at position {position} came without its log-probability")
        result.append(float(entries[token].logprob))
    return result

"""The rollout engine: requests join and leave at every step, and each step generates one token for all
running sequences.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from kubealign.spec.sections import engines as engine_spec
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.data.tokenization.tokenizers import check_vocabulary, decode_ids, load_tokenizer
from kubealign_services.generation.contract import EngineLoad, GeneratedSample, GenerationRequest
from kubealign_services.generation.model_folder import end_tokens, read_config
from kubealign_services.generation.request_validation import check_request
from kubealign_services.generation.torch_engine.attention.attention_plan import UnsupportedEngineModel
from kubealign_services.generation.torch_engine.kv_cache.page_manager import (
    PageManager,
    check_room,
    pages_for,
)
from kubealign_services.generation.torch_engine.kv_cache.routing_pages import RoutingPages
from kubealign_services.generation.torch_engine.model.causal_model import CausalModel
from kubealign_services.generation.torch_engine.model.model_runner import LocalModelRunner, ModelRunner
from kubealign_services.generation.torch_engine.sampling.sampler import sample
from kubealign_services.generation.torch_engine.scheduler.running_batch import RunningBatch
from kubealign_services.generation.torch_engine.scheduler.scheduler import ScheduledStep, Scheduler
from kubealign_services.runtime.free_memory import free_bytes
from kubealign_services.training.expert_routing import RoutingRecorder, UnsupportedRouting
from kubealign_services.training.torch_backend.precision import compute_dtype

NO_WEIGHTS = -1
GIB = 2**30
# Unused pages are evicted only when they exceed this share of the pages in use and, on a CPU, this number of
# bytes: on a CPU no other memory is reserved for keys and values.
SPARE_PAGE_SHARE = {"cuda": 1.0, "cpu": 0.25}
MIN_SPARE_BYTES = 16 * 2**20
# Storage doubles, but grows by at least and at most these numbers of pages.
MIN_GROWTH_PAGES, MAX_GROWTH_PAGES = 32, 4096
# Page numbers are int32.
MAX_PAGES = 2**31 - 1


class NonFiniteLogits(ArithmeticError):
    """The model's logits are NaN or infinite. Every request was dropped; the engine must be refitted."""


class TorchRolloutEngine:
    """A RolloutEngine on PyTorch. `version` is -1 until the first refit."""

    def __init__(
        self,
        runner: ModelRunner,
        tokenizer: PreTrainedTokenizerBase,
        spec: engine_spec.TorchEngineSpec,
        end_tokens: frozenset[int],
        recorder: RoutingRecorder | None = None,
    ) -> None:
        """Create an engine over a model runner.

        Args:
            runner: Runs the forward passes, in this process or in several.
            end_tokens: Token ids that end every response.
            recorder: Records the experts that the runner's model chooses; None: samples have no record.
        """
        self.version = NO_WEIGHTS
        self._has_weights = False
        self._has_base = False
        self._runner = runner
        self._tokenizer = tokenizer
        self._spec = spec
        self._end_tokens = end_tokens
        self._unfinished: dict[str, int] = {}
        limit = max_cache_pages(spec, runner)
        cache = PageManager(
            limit,
            spare_share=SPARE_PAGE_SHARE.get(runner.device.type, 0.0),
            min_spare_pages=MIN_SPARE_BYTES // runner.page_bytes,
        )
        rows = RunningBatch(spec.max_sequences, pages_for(runner.context), runner.vocabulary, runner.device)
        self._recorder = recorder
        self._routing = None if recorder is None else RoutingPages(recorder.shape)
        self._scheduler = Scheduler(rows, cache, spec.max_sequences, spec.prefill_tokens, self._routing)
        self._reserved_pages = 0
        self._generated_tokens = 0

    @classmethod
    def create(
        cls,
        folder: Path,
        spec: engine_spec.TorchEngineSpec,
        shares_cores: bool = False,
        records_routing: bool = False,
    ) -> "TorchRolloutEngine":
        """Create an engine from a folder with a Hugging Face configuration and tokenizer, on the GPU if there
        is one.

        Weights arrive by `refit`. Raises the errors of `with_runner`, and UnsupportedEngineModel.

        Args:
            shares_cores: See `LocalModelRunner`.
            records_routing: See `with_runner`.
        """

        def make_runner(config: Any) -> LocalModelRunner:
            return create_local_runner(config, spec, shares_cores)

        return cls.with_runner(folder, spec, make_runner, records_routing)

    @classmethod
    def with_runner(
        cls,
        folder: Path,
        spec: engine_spec.TorchEngineSpec,
        make_runner: Callable[[Any], ModelRunner],
        records_routing: bool = False,
    ) -> "TorchRolloutEngine":
        """Create an engine whose runner `make_runner` builds from the folder's configuration, after all other
        checks.

        Raises DataError (no tokenizer, or one that does not fit the model), OSError (a file is missing),
        UnsupportedEngineModel for a record of a model without experts that can be replayed.

        Args:
            records_routing: Samples have the experts that the model chose for each token.
        """
        config = read_config(folder)
        tokenizer = load_tokenizer(folder, "rollout engine")
        check_vocabulary(config, tokenizer, f"rollout engine, {folder}")
        ids = end_tokens(folder, config, tokenizer)
        runner = make_runner(config)
        return cls(runner, tokenizer, spec, ids, _recorder_of(runner) if records_routing else None)

    def add(self, request: GenerationRequest) -> None:
        """Queue a request. Raises RequestRefused, also for the id of a request that the engine still has."""
        check_request(request, self._runner.context, self._runner.vocabulary, self._unfinished)
        check_room(request, self._scheduler.cache.limit, self._runner.page_bytes)
        self._unfinished[request.request_id] = len(request.seeds)
        self._scheduler.add(request, self._end_tokens | set(request.sampling.stop_token_ids))

    @torch.inference_mode()
    def abort(self, request_id: str) -> None:
        """Drop a request and free its resources.

        Does nothing for a request that has ended or never existed.
        """
        if self._unfinished.pop(request_id, None) is not None:
            self._scheduler.abort(request_id)
            self._notify_if_idle()

    def load(self) -> EngineLoad:
        """Return the load. running, waiting and free_sequences count samples; token counts are totals since
        the start.
        """
        scheduler = self._scheduler
        return EngineLoad(
            running=len(scheduler.rows),
            waiting=scheduler.queue.sample_count(),
            free_sequences=self._spec.max_sequences - len(scheduler.rows),
            generated_tokens=self._generated_tokens,
            prefilled_tokens=scheduler.prefilled_tokens,
            reused_tokens=scheduler.reused_tokens,
            preemptions=scheduler.preemptions,
            cache_used=scheduler.cache.used / scheduler.cache.limit,
        )

    @torch.inference_mode()
    def step(self) -> list[GeneratedSample]:
        """Generate one token for every running sequence, including those admitted now.

        Return the finished samples.

        Returns an empty list when idle. Raises RuntimeError where the engine has no usable weights,
        NonFiniteLogits.
        """
        if not self._scheduler:
            return []
        self._require_weights()
        if self._runner.pages < self._reserved_pages:
            self._handle_lost_storage()
        try:
            finished = self._run_step()
        except NonFiniteLogits:
            raise
        except BaseException:
            # The scheduled tokens may not have been computed.
            self._scheduler.preempt_all()
            raise
        for each in finished:
            self._unfinished[each.request_id] -= 1
            if not self._unfinished[each.request_id]:
                del self._unfinished[each.request_id]
        self._notify_if_idle()
        return finished

    def _run_step(self) -> list[GeneratedSample]:
        step = self._scheduler.next_step(self._decode)
        self._reserve(self._scheduler.cache.storage_pages)
        logits = self._compute_logits(step)
        if self._recorder is not None and self._routing is not None:
            if step.batch is not None:
                self._routing.store(step.batch, self._recorder.take())
            self._routing.copy(step.sources, step.targets)
        if step.sources:
            self._runner.copy_pages(step.sources, step.targets)
        if logits is None:
            return []
        sampled = sample(logits, self._scheduler.rows.sampling_inputs())
        tokens, behaviour, engine = (
            each.cpu().numpy()
            for each in (sampled.tokens, sampled.behaviour_logprobs, sampled.engine_logprobs)
        )
        if not np.isfinite(behaviour + engine).all():
            self._drop_everything()
            raise NonFiniteLogits(
                f"the weights of version {self.version} give logits that are NaN or infinite"
            )
        self._generated_tokens += len(tokens)
        return self._scheduler.record_tokens(tokens, behaviour, engine, self.version, self._decode)

    def _compute_logits(self, step: ScheduledStep) -> Tensor | None:
        """Return logits [rows, vocabulary] for the running sequences, then for the starting samples; None
        where there are no rows.
        """
        computed = None if step.batch is None else self._runner.forward(step.batch)
        if not step.entries:
            return computed if step.running else None
        parts = []
        position = step.running
        if computed is not None and position:
            parts.append(computed[:position])
        for entry, count, fresh in step.entries:
            if fresh:
                assert computed is not None
                after_text = computed[position : position + 1]
                position += 1
            else:
                assert entry.logits is not None
                after_text = entry.logits
            # Logits are kept while some samples of the text have not started.
            entry.logits = after_text.clone() if entry.pages is not None else None
            parts.append(after_text.expand(count, -1))
        logits = torch.cat(parts)
        return logits if len(logits) else None

    def _reserve(self, pages: int) -> None:
        if pages > self._reserved_pages:
            spare = max(MIN_GROWTH_PAGES, min(self._reserved_pages, MAX_GROWTH_PAGES))
            self._reserved_pages = min(self._scheduler.cache.limit, max(pages, self._reserved_pages + spare))
            self._runner.reserve(self._reserved_pages)

    def _handle_lost_storage(self) -> None:
        """Recompute all running sequences after the KV cache was released by an offload."""
        self._scheduler.preempt_all()
        self._scheduler.cache.reset_storage()
        self._reserved_pages = 0

    def refit(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        """Load all weights by checkpoint name, in place, and flush the prefix cache.

        Waiting requests stay queued and are generated with the new weights, running ones continue as
        `in_flight` specifies. Raises RuntimeError for Drain while sequences run, ValueError for weights
        that do not fit: the engine then generates nothing until a refit succeeds, and running sequences
        are recomputed.
        """
        with self._weight_update(version, in_flight):
            self._has_base = False
            self._runner.load_weights(tensors)
            self._has_base = True

    def adapt(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        scale: float,
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        """Merge an adapter into the weights of the last refit, of which the adapted matrices are kept.

        Raises the errors of `refit`, and RuntimeError before the first refit.
        """
        with self._weight_update(version, in_flight):
            if not self._has_base:
                raise RuntimeError("an adapter came before the weights that it is an adapter to")
            self._runner.load_adapter(tensors, scale)

    @contextmanager
    def _weight_update(self, version: int, in_flight: InFlightPolicy) -> Iterator[None]:
        running = self._scheduler.running
        if running and in_flight is InFlightPolicy.DRAIN:
            raise RuntimeError(f"refit to version {version} while {running} sequences run")
        self._has_weights = False
        try:
            yield
        except BaseException:
            self._scheduler.preempt_all()
            raise
        finally:
            self._notify_if_idle()
        if in_flight is InFlightPolicy.CONTINUE:
            self._scheduler.invalidate_cache()
        else:
            self._scheduler.preempt_all()
        self.version = version
        self._has_weights = True

    @torch.inference_mode()
    def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        """Return the log-probabilities (temperature 1) of each token after the first, in float32.

        Does not affect running sequences.

        Raises ValueError for fewer than two tokens, more than the context, or one outside the vocabulary.
        """
        self._require_weights()
        if not 2 <= len(tokens) <= self._runner.context:
            raise ValueError(f"{len(tokens)} tokens: log-probabilities need 2 to {self._runner.context}")
        if not 0 <= min(tokens) <= max(tokens) < self._runner.vocabulary:
            raise ValueError(
                f"tokens {min(tokens)} to {max(tokens)}, of a vocabulary of {self._runner.vocabulary}"
            )
        ids = torch.tensor(tokens, device=self._runner.device)
        logits = self._runner.forward_sequence(tokens)
        self._notify_if_idle()
        logprobs: list[float] = torch.log_softmax(logits[:-1], dim=-1).gather(1, ids[1:, None])[:, 0].tolist()
        return logprobs

    def _notify_if_idle(self) -> None:
        if not self._scheduler:
            self._runner.on_idle()

    def _drop_everything(self) -> None:
        self._unfinished.clear()
        self._scheduler.clear()
        self._notify_if_idle()
        self._has_weights = False

    def _require_weights(self) -> None:
        if not self._has_weights:
            raise RuntimeError("the engine has no usable weights: refit it first")

    def _decode(self, tokens: Sequence[int]) -> str:
        return decode_ids(self._tokenizer, tokens)


def create_local_runner(
    config: Any, spec: engine_spec.TorchEngineSpec, shares_cores: bool = False
) -> LocalModelRunner:
    """Create the runner of a model in this process, on the GPU if there is one.

    Raises UnsupportedEngineModel.

    Args:
        config: Hugging Face configuration of the model.
        shares_cores: See `LocalModelRunner`.
    """
    model = CausalModel(config, compute_dtype(spec.effective_precision), default_device())
    return LocalModelRunner(model, shares_cores)


def _recorder_of(runner: ModelRunner) -> RoutingRecorder:
    if not isinstance(runner, LocalModelRunner):
        raise UnsupportedEngineModel(
            "rollout.routingReplay: a model in several processes records no experts: set "
            "rollout.engine.torch.tensorParallel to 1"
        )
    try:
        return runner.record_routing()
    except UnsupportedRouting as error:
        raise UnsupportedEngineModel(f"rollout.routingReplay: {error}: set it to false") from error


def default_device() -> torch.device:
    """Return the GPU, if there is one, or else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def max_cache_pages(spec: engine_spec.BuiltInEngineSpec, runner: ModelRunner) -> int:
    """Return the largest number of pages that the engine may allocate. Raises ValueError where it is zero."""
    if spec.cache_gib is None:
        room, field = spec.cache_share * free_bytes(runner.device), f"cacheShare {spec.cache_share}"
    else:
        room, field = spec.cache_gib * GIB, f"cacheGib {spec.cache_gib}"
    pages = int(room // runner.page_bytes)
    if not pages:
        raise ValueError(
            f"rollout.engine: {field} is {int(room)} bytes, which must hold at least one page of keys and "
            f"values, {runner.page_bytes} bytes"
        )
    return min(pages, MAX_PAGES)

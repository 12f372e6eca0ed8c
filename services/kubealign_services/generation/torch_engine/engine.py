"""The rollout engine: requests join and leave at every step, and each step makes one token for all that
run."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from kubealign.spec import engines as engine_spec
from kubealign.spec.precision import Precision
from kubealign_services.data.tokenizers import check_vocabulary, load_tokenizer
from kubealign_services.generation.contract import EngineLoad, GeneratedSample, GenerationRequest
from kubealign_services.generation.torch_engine.admission import Admission, Group, WaitingLine
from kubealign_services.generation.torch_engine.model import CausalModel, end_tokens, read_config
from kubealign_services.generation.torch_engine.passes import LocalPasses, Passes, Prompts
from kubealign_services.generation.torch_engine.requests import check_request
from kubealign_services.generation.torch_engine.sampling import Sampled, sample
from kubealign_services.generation.torch_engine.sequences import RunningRows

NO_WEIGHTS = -1
DTYPES = {Precision.FLOAT32: torch.float32, Precision.BFLOAT16: torch.bfloat16}


class NonFiniteLogits(ArithmeticError):
    """The model's logits are NaN or infinite. Every request was dropped; the engine must be refitted."""


class TorchEngine:
    """A RolloutEngine. `version` is -1 until the first refit."""

    def __init__(
        self,
        passes: Passes,
        tokenizer: PreTrainedTokenizerBase,
        spec: engine_spec.TorchEngine,
        ends: frozenset[int],
    ) -> None:
        """passes: through the model, whoever makes them. ends: the token ids that end every response."""
        self.version = NO_WEIGHTS
        self._usable = False
        self._has_base = False
        self._passes = passes
        self._tokenizer = tokenizer
        self._spec = spec
        self._ends = ends
        self._present: set[str] = set()
        self._waiting = WaitingLine()
        self._running = RunningRows(spec.max_sequences, passes.device)
        self._generated_tokens = 0
        self._prefilled_tokens = 0

    @classmethod
    def create(cls, folder: Path, spec: engine_spec.TorchEngine) -> "TorchEngine":
        """From a folder with a Hugging Face configuration and tokenizer, on the GPU if there is one. The
        weights come by `refit`. Raises as `over`, and UnsupportedModel."""

        def local(config: Any) -> LocalPasses:
            model = CausalModel(config, DTYPES[spec.precision], own_device())
            return LocalPasses(model, spec.max_sequences)

        return cls.over(folder, spec, local)

    @classmethod
    def over(
        cls, folder: Path, spec: engine_spec.TorchEngine, make: Callable[[Any], Passes]
    ) -> "TorchEngine":
        """With the passes that `make` makes of the folder's configuration, once the rest is known to fit.
        Raises DataError (no tokenizer, or one that does not fit the model), OSError (a file is missing)."""
        config = read_config(folder)
        tokenizer = load_tokenizer(folder, "rollout engine")
        check_vocabulary(config, tokenizer, f"rollout engine, {folder}")
        ends = end_tokens(folder, config, tokenizer)
        return cls(make(config), tokenizer, spec, ends)

    def add(self, request: GenerationRequest) -> None:
        """Queue it. Raises RequestRefused, also for the id of a request that the engine still has."""
        check_request(request, self._passes.context, self._passes.vocabulary, self._present)
        self._present.add(request.request_id)
        self._waiting.append(
            Group(request, self._ends | set(request.sampling.stop_token_ids), unfinished=len(request.seeds))
        )

    @torch.inference_mode()
    def abort(self, request_id: str) -> None:
        """Forget it and free its slots; a request that has ended, or never was, is none to forget."""
        self._present.discard(request_id)
        self._waiting.remove(request_id)
        self._leave(
            [
                row
                for row, each in enumerate(self._running.sequences)
                if each.group.request.request_id == request_id
            ]
        )
        self._rest_if_idle()

    def load(self) -> EngineLoad:
        """running, waiting and free_sequences count samples; the tokens are totals since the start."""
        return EngineLoad(
            running=len(self._running),
            waiting=self._waiting.samples(),
            free_sequences=self._spec.max_sequences - len(self._running),
            generated_tokens=self._generated_tokens,
            prefilled_tokens=self._prefilled_tokens,
        )

    @torch.inference_mode()
    def step(self) -> list[GeneratedSample]:
        """One token for every running sequence and for those that enter now. Returns those that ended; empty
        when idle. Raises RuntimeError where the engine has no usable weights, NonFiniteLogits."""
        if not len(self._running) and not self._waiting.samples():
            return []
        self._require_weights()
        free = self._spec.max_sequences - len(self._running)
        admissions = self._waiting.admit(free, self._spec.prefill_tokens)
        logits = [self._decode()] if len(self._running) else []
        if admissions:
            logits.append(self._prefill(admissions))
        sampled = sample(logits[0] if len(logits) == 1 else torch.cat(logits), self._running.choice())
        self._check_finite(sampled)
        ended = self._running.append(
            sampled.tokens.tolist(), sampled.behaviour_logprobs.tolist(), sampled.engine_logprobs.tolist()
        )
        self._generated_tokens += len(self._running)
        finished = []
        for row, why in ended:
            sequence = self._running.sequences[row]
            finished.append(sequence.finished(why, self.version))
            sequence.group.unfinished -= 1
            if not sequence.group.unfinished:
                self._present.discard(sequence.group.request.request_id)
        self._leave([row for row, _ in ended])
        return finished

    def refit(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take all weights by checkpoint name, in place, and flush the held prompt. Requests that wait stay
        and are made with them. Raises RuntimeError while sequences run, ValueError for weights that do not
        fit: the engine then generates nothing until a refit succeeds."""
        with self._renewed(version):
            self._has_base = False
            self._passes.take(tensors)
            self._has_base = True

    def adapt(self, tensors: Iterable[tuple[str, Tensor]], scale: float, version: int) -> None:
        """Merge an adapter into the weights of the last refit, which stay at hand where it changes them.
        Raises as `refit` does, and RuntimeError before the first."""
        with self._renewed(version):
            if not self._has_base:
                raise RuntimeError("an adapter came before the weights that it is an adapter to")
            self._passes.adapt(tensors, scale)

    @contextmanager
    def _renewed(self, version: int) -> Iterator[None]:
        if len(self._running):
            raise RuntimeError(f"refit to version {version} while {len(self._running)} sequences run")
        self._usable = False
        try:
            yield
        finally:
            self._rest_if_idle()
        for group in self._waiting:
            group.held = None
        self.version = version
        self._usable = True

    @torch.inference_mode()
    def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        """Log-probabilities (temperature 1) of each token after the first, float32. Touches no running
        sequence. Raises ValueError for fewer than two tokens, more than the context, or one outside the
        vocabulary."""
        self._require_weights()
        if not 2 <= len(tokens) <= self._passes.context:
            raise ValueError(f"{len(tokens)} tokens: log-probabilities need 2 to {self._passes.context}")
        if not 0 <= min(tokens) <= max(tokens) < self._passes.vocabulary:
            raise ValueError(
                f"tokens {min(tokens)} to {max(tokens)}, of a vocabulary of {self._passes.vocabulary}"
            )
        ids = torch.tensor(tokens, device=self._passes.device)
        logits = self._passes.score(tokens)
        self._rest_if_idle()
        logprobs: list[float] = torch.log_softmax(logits[:-1], dim=-1).gather(1, ids[1:, None])[:, 0].tolist()
        return logprobs

    def _decode(self) -> Tensor:
        """Logits [n, vocabulary] after the newest token of every running sequence."""
        return self._passes.decode(*self._running.last_tokens())

    def _prefill(self, admissions: list[Admission]) -> Tensor:
        """Let samples enter, their groups' prompts computed once. Logits [samples, vocabulary] after each
        one's prompt."""
        held = [each for each in admissions if each.group.held is not None]
        fresh = sorted(
            (each for each in admissions if each.group.held is None),
            key=lambda each: len(each.group.request.prompt_tokens),
        )
        first = len(self._running)
        for each in held + fresh:
            self._running.enter(each.group, each.first, each.count, self._text)
        self._passes.reserve(len(self._running), max(each.group.positions for each in admissions))
        logits = []
        for each in held:
            after_prompt = each.group.held
            assert after_prompt is not None
            self._passes.restore(first, each.count)
            first += each.count
            logits.append(after_prompt.expand(each.count, -1))
            if not each.group.remaining:
                each.group.held = None
        if fresh:
            logits.append(self._prefill_prompts(fresh, first))
        return torch.cat(logits)

    def _prefill_prompts(self, admissions: list[Admission], first_slot: int) -> Tensor:
        """One packed forward pass over the prompts, which are sorted by length. Logits as in `_prefill`."""
        texts = [each.group.request.prompt_tokens for each in admissions]
        counts = [each.count for each in admissions]
        prompts = Prompts(
            tokens=[token for text in texts for token in text],
            lengths=[len(text) for text in texts],
            samples=counts,
            first_slot=first_slot,
        )
        logits = self._passes.prefill(prompts)
        self._prefilled_tokens += len(prompts.tokens)
        slot = first_slot
        for row, each in enumerate(admissions):
            if each.group.remaining:
                self._passes.hold(slot, len(texts[row]))
                each.group.held = logits[row].clone()
            slot += each.count
        return logits.repeat_interleave(torch.tensor(counts, device=logits.device), dim=0)

    def _leave(self, rows: list[int]) -> None:
        if not rows:
            return
        sources, targets = self._running.leave(rows)
        if sources:
            self._passes.move(sources, targets, self._running.longest(targets))
        self._rest_if_idle()

    def _rest_if_idle(self) -> None:
        if not len(self._running) and not self._waiting.samples():
            self._passes.rest()

    def _check_finite(self, sampled: Sampled) -> None:
        if bool(torch.isfinite(sampled.engine_logprobs + sampled.behaviour_logprobs).all()):
            return
        self._present.clear()
        self._waiting.clear()
        self._running.clear()
        self._rest_if_idle()
        self._usable = False
        raise NonFiniteLogits(f"the weights of version {self.version} give logits that are NaN or infinite")

    def _require_weights(self) -> None:
        if not self._usable:
            raise RuntimeError("the engine has no usable weights: refit it first")

    def _text(self, tokens: Sequence[int]) -> str:
        # Special tokens stay: what was sampled is what a reward sees, and a stop string may be one of them.
        text = self._tokenizer.decode(
            list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return str(text)


def own_device() -> torch.device:
    """The GPU, if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")

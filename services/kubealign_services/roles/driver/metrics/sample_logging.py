"""Sample logging: a few samples of each step with per-token values, truncated for display and stored in a
file.
"""

import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from kubealign.spec.job import AlignmentJobSpec
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.reward_columns import read_scores, reward_names
from kubealign_services.batch.samples import has_several_sequences, last_sequences, sample_name
from kubealign_services.data.errors import DataError
from kubealign_services.data.prepared import PreparedJob, row_index
from kubealign_services.data.tokenization.tokenizers import decode_ids
from kubealign_services.roles.driver.metrics.report import StepRecord, append_lines
from kubealign_services.roles.driver.validation.samples import ValidationSample
from kubealign_services.scoring.purposes import VALIDATION
from kubealign_services.telemetry.json_values import to_json

log = logging.getLogger(__name__)
#: Tokens -> text, special tokens written out.
Decode = Callable[[Sequence[int]], str]
#: Samples shown per step: the best, the worst and others.
PREVIEWS_PER_STEP = 4
#: Tokens of a response that are shown: about 40 KB with six numbers each.
HEAD_TOKENS, TAIL_TOKENS = 384, 128
#: Most characters of a prompt or a response. The text may be complete where the tokens are truncated.
MAX_CHARACTERS = 32_768
MAX_FILE_BYTES = 64 * 2**20
_SIGNIFICANT_DIGITS = 4
# Decoders write this for bytes that are not (yet) a character.
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A character has four bytes at most, so a token this many positions back cannot be incomplete any more.
_MAX_PENDING_TOKENS = 8


class TokenSplitter:
    """Splits responses by token with the job's tokenizer, which `load` reads for the first response."""

    def __init__(self, load: Callable[[], Decode]) -> None:
        self._load = load

    def __call__(self, tokens: Sequence[int], text: str) -> list[str]:
        """Return the pieces as `split_by_token`; none if the tokenizer cannot be read, since previews must
        not fail a job.
        """
        return [] if self._decode is None else split_by_token(tokens, text, self._decode)

    @cached_property
    def _decode(self) -> Decode | None:
        try:
            return self._load()
        except DataError as error:
            log.warning("samples are shown without their tokens", extra={"cause": str(error)})
            return None


class SamplePreviews:
    """Chooses samples of a step and builds their previews for displays.

    Args:
        seed: The job's seed.
        count: Number of samples of a step.
    """

    def __init__(self, texts: TokenSplitter, seed: int, count: int = PREVIEWS_PER_STEP) -> None:
        self._texts = texts
        self._seed = seed
        self._count = count

    @classmethod
    def of_job(cls, spec: AlignmentJobSpec, prepared: PreparedJob) -> "SamplePreviews":
        """Return the previews of a job: as many samples as the displays, or a tracker, show."""
        texts = TokenSplitter(lambda: partial(decode_ids, prepared.tokenizer))
        return cls(texts, spec.seed, max([PREVIEWS_PER_STEP, *(each.completions for each in spec.trackers)]))

    def add_previews(self, batch: Batch, step: StepRecord) -> None:
        """Add previews of the batch's samples to the step. A step of given rows has none.

        The batch must contain its rewards and, if the algorithm has them, its advantages.
        """
        if not step.sample_texts:
            return
        rewarded = "rewards" in batch.sequence_columns
        several = has_several_sequences(batch)
        # The text of a sample is that of its last sequence.
        batch = batch.select(last_sequences(batch)) if several else batch
        rewards = batch.sequence("rewards").tolist() if rewarded else [0.0] * len(batch)
        for index in choose_samples(rewards, self._seed, step.step, self._count):
            name = batch.sample_ids[index]
            texts = step.sample_texts[sample_name(name) if several else name]
            sequence = batch.select([index])
            mask = sequence.token("loss_mask").bool()
            step.previews.append(
                {
                    "prompt": truncate_text(texts.prompt),
                    "response": truncate_text(texts.response),
                    "reward": rewards[index] if rewarded else None,
                    "rewards": {name: read_scores(sequence, name)[0] for name in reward_names(sequence)},
                    "explanations": dict(texts.explanations),
                    "weight_version": int(sequence.token("weight_version")[mask].min()),
                    "truncated": bool(sequence.sequence("truncated")[0]),
                    "group_id": batch.sample_ids[index].rpartition("#")[0],
                    "purpose": "train",
                    **self._token_fields(
                        sequence.tokens[mask].tolist(), texts.response, collect_token_values(sequence)
                    ),
                }
            )

    def from_responses(
        self, samples: Sequence[ValidationSample], step: int, version: int, purpose: str = VALIDATION
    ) -> list[dict[str, Any]]:
        """Return previews of responses to many prompts; best and worst by their mean score."""
        scores = [[score for score in sample.scores.values() if score is not None] for sample in samples]
        means = [sum(known) / max(1, len(known)) for known in scores]
        return [
            {
                "prompt": truncate_text(sample.prompt),
                "response": truncate_text(sample.response),
                # The sum of several scores has no meaning.
                "reward": next(iter(sample.scores.values())) if len(sample.scores) == 1 else None,
                "rewards": sample.scores,
                "explanations": sample.explanations,
                "weight_version": version,
                "truncated": sample.truncated,
                "group_id": sample.group_id,
                "purpose": purpose,
                **self._token_fields(sample.tokens, sample.response, {"logprobs": sample.logprobs}),
            }
            for sample in (samples[index] for index in choose_samples(means, self._seed, step, self._count))
        ]

    @staticmethod
    def of_validation(samples: Sequence[ValidationSample], set_name: str = "") -> list[dict[str, Any]]:
        """Return every response by row, without tokens, for comparisons with another measurement.

        `shortened`: the middle of a text is left out.

        Args:
            set_name: Evaluation set; empty: the job's only one.
        """
        return [
            {
                "set": set_name,
                "group_id": sample.group_id,
                "prompt": truncate_text(sample.prompt),
                "response": truncate_text(sample.response),
                "scores": sample.scores,
                "explanations": {source: truncate_text(text) for source, text in sample.explanations.items()},
                "truncated": sample.truncated,
                "shortened": max(len(sample.prompt), len(sample.response)) > MAX_CHARACTERS,
            }
            for sample in sorted(samples, key=lambda sample: row_index(sample.group_id))
        ]

    def _token_fields(
        self, tokens: Sequence[int], response: str, values: Mapping[str, Sequence[float]]
    ) -> dict[str, Any]:
        """Return the fields tokens and token_values of a preview."""
        pieces = self._texts(tokens, response)
        shown, numbers = truncate_tokens(pieces, values if pieces else {})
        return {"tokens": shown, "token_values": numbers}


def choose_samples(
    rewards: Sequence[float], seed: int, step: int, count: int = PREVIEWS_PER_STEP
) -> list[int]:
    """Return the indices of the best sample, the worst, and others drawn from seed and step, `count` in all.

    Returns all indices of four or fewer samples. The first four do not depend on the count.
    """
    if len(rewards) <= PREVIEWS_PER_STEP:
        return list(range(len(rewards)))
    order = sorted(range(len(rewards)), key=lambda index: rewards[index])
    draw = random.Random(f"{seed}:{step}")
    others = draw.sample(order[1:-1], PREVIEWS_PER_STEP - 2)
    rest = [index for index in order[1:-1] if index not in others]
    more = draw.sample(rest, min(count - PREVIEWS_PER_STEP, len(rest)))
    return [order[-1], order[0], *sorted(others), *sorted(more)]


def collect_token_values(sequence: Batch) -> dict[str, list[float]]:
    """Return name -> value of each response token of a batch of one sequence, for the columns present.

    logprobs: the engine's. trainer_logprobs: those of the weights before the step. logprob_gap: the
    engine's minus the trainer's. kl: the trainer's minus the reference's, whose mean estimates the KL
    divergence. advantages: an advantage per sequence applies to each of its tokens. values: the critic's,
    for the state before the token. All but the last two are in nats.
    """
    mask = sequence.token("loss_mask").bool()
    columns = sequence.token_columns
    values: dict[str, Tensor] = {}
    for name, column in (
        ("logprobs", "engine_logprobs"),
        ("trainer_logprobs", "old_logprobs"),
        ("advantages", "advantages"),
        ("values", "values"),
    ):
        if column in columns:
            values[name] = columns[column]
    if "old_logprobs" in columns:
        values["logprob_gap"] = columns["engine_logprobs"] - columns["old_logprobs"]
    if "old_logprobs" in columns and "reference_logprobs" in columns:
        values["kl"] = columns["old_logprobs"] - columns["reference_logprobs"]
    if "advantages" in sequence.sequence_columns:
        values["advantages"] = sequence.sequence("advantages")[sequence.sequence_of_token]
    return {name: column[mask].tolist() for name, column in values.items()}


def truncate_text(text: str) -> str:
    """Return the text, or its two ends around a mark with the number of characters left out."""
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}[... {len(text) - 2 * half} characters left out ...]{text[-half:]}"


def truncate_tokens(
    pieces: Sequence[str], values: Mapping[str, Sequence[float]]
) -> tuple[list[str], dict[str, list[float | None]]]:
    """Return the pieces and, by name, a number for each, rounded to four digits.

    Of more than HEAD_TOKENS + TAIL_TOKENS the first and the last are kept; a mark without numbers replaces
    the rest.
    """
    left_out = len(pieces) - HEAD_TOKENS - TAIL_TOKENS
    rounded: dict[str, list[float | None]] = {
        name: [float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for value in column]
        for name, column in values.items()
    }
    if left_out <= 0:
        return list(pieces), rounded
    mark = f"[... {left_out} tokens left out ...]"
    return (
        [*pieces[:HEAD_TOKENS], mark, *pieces[-TAIL_TOKENS:]],
        {name: [*column[:HEAD_TOKENS], None, *column[-TAIL_TOKENS:]] for name, column in rounded.items()},
    )


def split_by_token(tokens: Sequence[int], text: str, decode: Decode) -> list[str]:
    """Return one piece per token.

    Joined, the pieces are `text`, which ends at a stop string or a special token.

    A token that ends within a character adds nothing: the token that completes the character adds it. Each
    token is decoded together with the one before it, since some decoders need that for the right spaces.
    """
    texts: list[str] = []
    begin = settled = 0
    for end in range(1, len(tokens) + 1):
        settled_text = decode(tokens[begin:settled])
        new_text = decode(tokens[begin:end])[len(settled_text) :]
        if new_text.endswith(_REPLACEMENT) and end - settled < _MAX_PENDING_TOKENS:
            texts.append("")
            continue
        texts.append(new_text)
        begin, settled = settled, end
    return _fit_to_text(texts, text)


def _fit_to_text(parts: list[str], text: str) -> list[str]:
    """Cut the pieces at the end of the text; the last piece takes the text that partial decoding has left
    over.
    """
    fitted, remaining = [], text
    for piece in parts:
        cut = piece[: len(remaining)]
        fitted.append(cut if remaining.startswith(cut) else remaining[: len(piece)])
        remaining = remaining[len(piece) :]
    if fitted and remaining:
        fitted[-1] += remaining
    return fitted


class SampleFile:
    """Metric sink that writes one JSON object per line: the step, and the sample's fields in the read model's
    form.

    The file only grows, so that a line's position identifies it, and stays below `max_bytes`: the fuller
    it is, the fewer steps are kept. Of every

        2 ** floor(log2(max_bytes / (max_bytes - size)))

    steps one is kept: all until the file is half full, every second until three quarters, and so on.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        """Ignore metrics: `metrics.jsonl` contains them."""

    def samples(self, step: int, fence: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Append a step's samples, or drop them if the step is not among those kept."""
        size = self._path.stat().st_size if self._path.exists() else 0
        lines = "".join(to_json({"step": step, **sample}) + "\n" for sample in samples[:PREVIEWS_PER_STEP])
        if size + len(lines.encode()) < self._max_bytes and step % self._stride(size) == 0:
            append_lines(self._path, lines)

    def validation_samples(self, step: int, fence: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Ignore them: each validation has a file of its own."""

    def _stride(self, size: int) -> int:
        """Return the number of steps of which one is kept at this file size."""
        return int(2 ** math.floor(math.log2(self._max_bytes / (self._max_bytes - size))))

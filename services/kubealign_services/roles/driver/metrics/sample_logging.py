"""Sample logging: a few samples of each step with per-token values, truncated for display and stored in a
file.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from kubealign_services.batch.packed import Batch
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.metrics.shown_tokens import truncate_text, truncate_tokens
from kubealign_services.roles.driver.metrics.token_texts import TokenSplitter
from kubealign_services.roles.driver.validation.metrics import ValidationSample

#: Samples shown per step: the best, the worst and others.
PREVIEWS_PER_STEP = 4


class SamplePreviews:
    """Chooses samples of a step and builds their previews for displays.

    Args:
        seed: The job's seed.
    """

    def __init__(self, texts: TokenSplitter, seed: int) -> None:
        self._texts = texts
        self._seed = seed

    def add_previews(self, batch: Batch, step: StepRecord) -> None:
        """Add previews of the batch's samples to the step. A step of given rows has none.

        The batch must contain its rewards and, if the algorithm has them, its advantages.
        """
        if not step.sample_texts:
            return
        rewarded = "rewards" in batch.sequence_columns
        rewards = batch.sequence("rewards").tolist() if rewarded else [0.0] * len(batch)
        for index in choose_samples(rewards, self._seed, step.step):
            answer = step.sample_texts[batch.sample_ids[index]]
            sequence = batch.select([index])
            mask = sequence.token("loss_mask").bool()
            step.previews.append(
                {
                    "prompt": truncate_text(answer.prompt),
                    "response": truncate_text(answer.response),
                    "reward": rewards[index] if rewarded else None,
                    "rewards": {
                        name.removeprefix("reward."): float(column[0])
                        for name, column in sequence.sequence_columns.items()
                        if name.startswith("reward.")
                    },
                    "weight_version": int(sequence.token("weight_version")[mask].min()),
                    "truncated": bool(sequence.sequence("truncated")[0]),
                    "group_id": batch.sample_ids[index].rpartition("#")[0],
                    "purpose": "train",
                    **self._token_fields(sequence.tokens[mask].tolist(), answer.response, collect_token_values(sequence)),
                }
            )

    def from_responses(
        self, samples: Sequence[ValidationSample], step: int, version: int, purpose: str = "validation"
    ) -> list[dict[str, Any]]:
        """Return previews of responses to many prompts; best and worst by their mean score."""
        means = [sum(sample.scores.values()) / max(1, len(sample.scores)) for sample in samples]
        return [
            {
                "prompt": truncate_text(sample.prompt),
                "response": truncate_text(sample.response),
                # The sum of several scores has no meaning.
                "reward": next(iter(sample.scores.values())) if len(sample.scores) == 1 else None,
                "rewards": sample.scores,
                "weight_version": version,
                "truncated": sample.truncated,
                "group_id": sample.group_id,
                "purpose": purpose,
                **self._token_fields(sample.tokens, sample.response, {"logprobs": sample.logprobs}),
            }
            for sample in (samples[index] for index in choose_samples(means, self._seed, step))
        ]

    def _token_fields(
        self, tokens: Sequence[int], response: str, values: Mapping[str, Sequence[float]]
    ) -> dict[str, Any]:
        """Return the fields tokens and token_values of a preview."""
        pieces = self._texts(tokens, response)
        shown, numbers = truncate_tokens(pieces, values if pieces else {})
        return {"tokens": shown, "token_values": numbers}


def choose_samples(rewards: Sequence[float], seed: int, step: int) -> list[int]:
    """Return the indices of the best sample, the worst, and two others drawn from seed and step.

    Returns all indices of four or fewer samples.
    """
    if len(rewards) <= PREVIEWS_PER_STEP:
        return list(range(len(rewards)))
    order = sorted(range(len(rewards)), key=lambda index: rewards[index])
    others = random.Random(f"{seed}:{step}").sample(order[1:-1], PREVIEWS_PER_STEP - 2)
    return [order[-1], order[0], *sorted(others)]


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

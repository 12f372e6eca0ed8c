"""A few samples of a step, as a person reads them, with what is known of each of their tokens."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from kubealign_services.batch.packed import Batch
from kubealign_services.driver.report import StepFigures
from kubealign_services.driver.shown_tokens import shown_text, shown_tokens
from kubealign_services.driver.token_texts import TokenTexts
from kubealign_services.driver.validation_figures import ValidationSample

#: Of a step: the best, the worst, and others.
SHOWN = 4


class Previews:
    """Chooses samples and puts together what displays show of them. `seed`: the job's."""

    def __init__(self, texts: TokenTexts, seed: int) -> None:
        self._texts = texts
        self._seed = seed

    def take(self, batch: Batch, step: StepFigures) -> None:
        """Note the step's samples, from a batch that has its advantages, where it has any, and its rewards. A
        step of rows has none."""
        if not step.answers:
            return
        rewarded = "rewards" in batch.sequence_columns
        rewards = batch.sequence("rewards").tolist() if rewarded else [0.0] * len(batch)
        for place in chosen(rewards, self._seed, step.step):
            answer = step.answers[batch.sample_ids[place]]
            sequence = batch.select([place])
            mask = sequence.token("loss_mask").bool()
            step.samples.append(
                {
                    "prompt": shown_text(answer.prompt),
                    "response": shown_text(answer.response),
                    "reward": rewards[place] if rewarded else None,
                    "rewards": {
                        name.removeprefix("reward."): float(column[0])
                        for name, column in sequence.sequence_columns.items()
                        if name.startswith("reward.")
                    },
                    "weight_version": int(sequence.token("weight_version")[mask].min()),
                    "truncated": bool(sequence.sequence("truncated")[0]),
                    "group_id": batch.sample_ids[place].rpartition("#")[0],
                    "purpose": "train",
                    **self._tokens(sequence.tokens[mask].tolist(), answer.response, token_values(sequence)),
                }
            )

    def of_answers(
        self, samples: Sequence[ValidationSample], step: int, version: int, purpose: str = "validation"
    ) -> list[dict[str, Any]]:
        """Of answers to many prompts; best and worst by the mean of their scores."""
        means = [sum(sample.scores.values()) / max(1, len(sample.scores)) for sample in samples]
        return [
            {
                "prompt": shown_text(sample.prompt),
                "response": shown_text(sample.response),
                # Several scores have no sum that means anything.
                "reward": next(iter(sample.scores.values())) if len(sample.scores) == 1 else None,
                "rewards": sample.scores,
                "weight_version": version,
                "truncated": sample.truncated,
                "group_id": sample.group_id,
                "purpose": purpose,
                **self._tokens(sample.tokens, sample.response, {"logprobs": sample.logprobs}),
            }
            for sample in (samples[place] for place in chosen(means, self._seed, step))
        ]

    def _tokens(
        self, tokens: Sequence[int], response: str, values: Mapping[str, Sequence[float]]
    ) -> dict[str, Any]:
        pieces = self._texts(tokens, response)
        shown, numbers = shown_tokens(pieces, values if pieces else {})
        return {"tokens": shown, "token_values": numbers}


def chosen(rewards: Sequence[float], seed: int, step: int) -> list[int]:
    """Places of the best sample, the worst, and two of the others that seed and step draw; all of four or
    fewer."""
    if len(rewards) <= SHOWN:
        return list(range(len(rewards)))
    order = sorted(range(len(rewards)), key=lambda place: rewards[place])
    others = random.Random(f"{seed}:{step}").sample(order[1:-1], SHOWN - 2)
    return [order[-1], order[0], *sorted(others)]


def token_values(sequence: Batch) -> dict[str, list[float]]:
    """Name -> a number for each response token of a batch of one sequence, of what its columns hold.

    logprobs: the engine's. trainer_logprobs: of the weights before the step. logprob_gap: the engine's less
    the trainer's. kl: the trainer's less the reference's, whose mean is the KL. advantages: a sequence's own
    holds for each of its tokens. values: the critic's, of the state before the token. All but the last two
    in nats.
    """
    mask = sequence.token("loss_mask").bool()
    held = sequence.token_columns
    found: dict[str, Tensor] = {}
    for name, column in (
        ("logprobs", "engine_logprobs"),
        ("trainer_logprobs", "old_logprobs"),
        ("advantages", "advantages"),
        ("values", "values"),
    ):
        if column in held:
            found[name] = held[column]
    if "old_logprobs" in held:
        found["logprob_gap"] = held["engine_logprobs"] - held["old_logprobs"]
    if "old_logprobs" in held and "reference_logprobs" in held:
        found["kl"] = held["old_logprobs"] - held["reference_logprobs"]
    if "advantages" in sequence.sequence_columns:
        found["advantages"] = sequence.sequence("advantages")[sequence.sequence_of_token]
    return {name: column[mask].tolist() for name, column in found.items()}

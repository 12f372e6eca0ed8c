"""Sampled responses of a validation, with their scores. Pure."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup


@dataclass(frozen=True)
class ValidationSample:
    """One response to a held-out prompt; of an episode with several sequences the last one.

    `scores`: by source; None where it does not apply. `explanations`: by source. `tokens`: the response's
    ids; `logprobs`: the engine's, one per token.
    """

    group_id: str
    prompt: str
    response: str
    length: int
    truncated: bool
    scores: dict[str, float | None]
    columns: dict[str, Any]
    explanations: dict[str, str] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def to_json(self) -> str:
        """Return the sample as JSON, without tokens and log-probabilities."""
        fields = asdict(self)
        del fields["tokens"], fields["logprobs"]
        return json.dumps(fields, ensure_ascii=False)


def collect_validation_samples(
    groups: Sequence[RolloutGroup], sources: Sequence[str]
) -> list[ValidationSample]:
    """Return every sample of the groups with the score of each source."""
    samples = []
    for group in groups:
        explanations = group.explanations()
        for index in sorted(group.rollouts):
            rollout = group.rollouts[index]
            context = json.loads(rollout.columns)
            sequences = decode(rollout.sequence)
            sequence = sequences.select([len(sequences) - 1])
            response = sequence.token("loss_mask").bool()
            samples.append(
                ValidationSample(
                    group_id=group.group_id,
                    prompt=context["prompt"],
                    response=rollout.response,
                    length=int(response.sum()),
                    truncated=rollout.finish_reason == rollout_pb2.FINISH_REASON_LENGTH,
                    scores={source: group.reward(index, source) for source in sources},
                    columns=context["columns"],
                    explanations=explanations[index],
                    tokens=sequence.tokens[response].tolist(),
                    logprobs=sequence.token("engine_logprobs")[response].tolist(),
                )
            )
    return samples

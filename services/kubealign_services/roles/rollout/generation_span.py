"""Attributes of the span `Generate` of a work item: numbers and names, no texts and no tokens."""

from collections.abc import Sequence

from opentelemetry.trace import Span

from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import decode


def item_attributes(item: rollout_pb2.WorkItem) -> dict[str, str | int]:
    """Return the attributes of a work item, which holds one prompt."""
    return {
        "kubealign.fence": item.fence,
        "kubealign.purpose": item.purpose,
        "kubealign.attempt": item.attempt,
        "kubealign.prompts": 1,
        "kubealign.prompt_tokens": len(item.prompt_tokens),
    }


def record_rollouts(span: Span, rollouts: Sequence[rollout_pb2.Rollout]) -> None:
    """Add the attributes of an item's samples to its span, if the span is recorded.

    `kubealign.tokens` counts the tokens that the model generated. `kubealign.weights_version` is the newest
    version that generated one of them; absent if the policy generated none.
    """
    if not span.is_recording():
        return
    tokens, newest, samples = 0, -1, 0
    for rollout in rollouts:
        if rollout.finish_reason == rollout_pb2.FINISH_REASON_FAILED:
            continue
        sequence = decode(rollout.sequence)
        versions = sequence.token("weight_version")[sequence.token("loss_mask").bool()]
        samples += 1
        tokens += len(versions)
        newest = max(newest, int(versions.max()) if len(versions) else -1)
    span.set_attributes({"kubealign.samples": samples, "kubealign.tokens": tokens})
    if newest >= 0:
        span.set_attribute("kubealign.weights_version", newest)

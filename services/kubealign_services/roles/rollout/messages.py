"""Converts work items to engine requests and samples to rollout messages. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import Batch
from kubealign_services.generation.contract import (
    FinishReason,
    GeneratedSample,
    GenerationRequest,
    SamplingParameters,
)
from kubealign_services.training.expert_routing import ROUTING, routing_column


@dataclass(frozen=True)
class GroupPart:
    """Samples of a group that are generated alike. first_sample: index of the first one in the group."""

    request: GenerationRequest
    first_sample: int


def make_item_key(item: rollout_pb2.WorkItem) -> str:
    """Return a key that contains the group's fence and attempt, so that no two requests share one."""
    return f"{item.fence}:{item.purpose}:{item.group_id}:{item.attempt}"


def split_into_parts(item: rollout_pb2.WorkItem) -> list[GroupPart]:
    """Return the engine's requests for a group: the sampled ones, the greedy ones, the reference's."""
    greedy = len(item.seeds) - item.reference_samples - item.greedy_samples
    reference = len(item.seeds) - item.reference_samples
    temperature = item.sampling.temperature
    parts = []
    if greedy:
        parts.append(GroupPart(_request(item, "", item.seeds[:greedy], temperature), 0))
    if item.greedy_samples:
        parts.append(GroupPart(_request(item, ":greedy", item.seeds[greedy:reference], 0.0), greedy))
    if item.reference_samples:
        request = _request(item, ":reference", item.seeds[reference:], temperature)
        parts.append(GroupPart(replace(request, from_reference=True), reference))
    return parts


def _request(
    item: rollout_pb2.WorkItem, suffix: str, seeds: Sequence[int], temperature: float
) -> GenerationRequest:
    sampling = item.sampling
    return GenerationRequest(
        request_id=make_item_key(item) + suffix,
        prompt_tokens=tuple(item.prompt_tokens),
        seeds=tuple(seeds),
        sampling=SamplingParameters(
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            temperature=temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            stop=tuple(sampling.stop),
            stop_token_ids=tuple(sampling.stop_token_ids),
        ),
    )


def to_rollout(
    item: rollout_pb2.WorkItem,
    sample: GeneratedSample,
    worker: str,
    first_sample: int = 0,
    loss_mask: Sequence[int] | None = None,
    temperature: float | None = None,
    sequences: Batch | None = None,
) -> rollout_pb2.Rollout:
    """Return the message of one finished sample, with columns as in rollout.proto.

    Args:
        first_sample: Index of the part's first sample in the group.
        loss_mask: 0 at tokens that are not the policy's own; None: all tokens are.
        temperature: Temperature of the log-probabilities; None: the item's sampling temperature, 1 if that
            is 0. Greedy samples of a group keep the group's, since their baseline estimates the return of
            the policy at that temperature.
        sequences: Sequences of an episode that has several; the sample is the last of them. None: the sample
            follows the item's prompt.
    """
    if sequences is None:
        name = f"{item.group_id}#{first_sample + sample.sample}"
        sequences = to_sequence(item.prompt_tokens, sample, name, loss_mask)
    return rollout_pb2.Rollout(
        fence=item.fence,
        group_id=item.group_id,
        attempt=item.attempt,
        sample=first_sample + sample.sample,
        worker=worker,
        sequence=encode(sequences),
        finish_reason=rollout_pb2.FINISH_REASON_STOP
        if sample.finish is FinishReason.STOP
        else rollout_pb2.FINISH_REASON_LENGTH,
        columns=item.columns,
        purpose=item.purpose,
        seconds=sample.seconds,
        response=sample.text,
        temperature=(item.sampling.temperature or 1.0) if temperature is None else temperature,
    )


def to_sequence(
    prompt: Sequence[int], sample: GeneratedSample, name: str, loss_mask: Sequence[int] | None = None
) -> Batch:
    """Return a prompt and its response as a batch of one sequence, with the token columns of rollout.proto.

    Args:
        loss_mask: As in `to_rollout`.
    """
    prompt_length = len(prompt)

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor([0.0] * prompt_length + values, dtype=torch.float32)

    columns = {
        "loss_mask": torch.tensor(
            [0] * prompt_length + list(loss_mask or [1] * len(sample.tokens)), dtype=torch.uint8
        ),
        "behaviour_logprobs": column(sample.behaviour_logprobs),
        "engine_logprobs": column(sample.engine_logprobs),
        "weight_version": torch.tensor([-1] * prompt_length + sample.versions, dtype=torch.int32),
    }
    if sample.routing is not None:
        columns[ROUTING] = routing_column(sample.routing, prompt_length + len(sample.tokens))
    return Batch(
        tokens=torch.tensor([*prompt, *sample.tokens], dtype=torch.int32),
        cu_seqlens=torch.tensor([0, prompt_length + len(sample.tokens)], dtype=torch.int32),
        sample_ids=[name],
        token_columns=columns,
    )


def to_given_rollouts(
    item: rollout_pb2.WorkItem, logprobs: Sequence[list[float]], version: int, worker: str
) -> list[rollout_pb2.Rollout]:
    """Return the responses that an item gives as rollouts, without text.

    Args:
        logprobs: Log-probability of each response token at temperature 1.
    """
    samples = [
        GeneratedSample(
            request_id=make_item_key(item),
            sample=index,
            tokens=list(continuation.tokens),
            behaviour_logprobs=list(values),
            engine_logprobs=list(values),
            versions=[version] * len(values),
            finish=FinishReason.STOP,
            text="",
        )
        for index, (continuation, values) in enumerate(zip(item.continuations, logprobs, strict=True))
    ]
    return [to_rollout(item, sample, worker, temperature=1.0) for sample in samples]


def to_failed_rollout(item: rollout_pb2.WorkItem, error: str, worker: str) -> rollout_pb2.Rollout:
    """Return the failed rollout of a group that cannot be generated, with the error."""
    return rollout_pb2.Rollout(
        fence=item.fence,
        group_id=item.group_id,
        attempt=item.attempt,
        worker=worker,
        finish_reason=rollout_pb2.FINISH_REASON_FAILED,
        error=error,
        columns=item.columns,
        purpose=item.purpose,
    )


def make_message_id(rollout: rollout_pb2.Rollout) -> str:
    """Return an id that is equal for every copy of a sample, or of the failure of a group: the bus keeps the
    first.
    """
    # A failed rollout names no sample; the first sample of its group may have been published already.
    sample = "failed" if rollout.finish_reason == rollout_pb2.FINISH_REASON_FAILED else rollout.sample
    return f"{rollout.fence}:{rollout.purpose}:{rollout.group_id}:{rollout.attempt}:{sample}"

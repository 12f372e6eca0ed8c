"""Work items to engine requests, samples to rollout messages. Pure."""

import torch

from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import Batch
from kubealign_services.generation.contract import (
    Finish,
    GeneratedSample,
    GenerationRequest,
    SamplingParameters,
)


def request_of(item: rollout_pb2.WorkItem) -> GenerationRequest:
    """The engine's request for a group; its id names fence and attempt too, so that two never meet."""
    sampling = item.sampling
    return GenerationRequest(
        request_id=f"{item.fence}:{item.purpose}:{item.group_id}:{item.attempt}",
        prompt_tokens=tuple(item.prompt_tokens),
        seeds=tuple(item.seeds),
        sampling=SamplingParameters(
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            stop=tuple(sampling.stop),
            stop_token_ids=tuple(sampling.stop_token_ids),
        ),
    )


def rollout_of(item: rollout_pb2.WorkItem, sample: GeneratedSample, worker: str) -> rollout_pb2.Rollout:
    """One finished sample as it goes over the bus. Columns as rollout.proto says."""
    prompt = list(item.prompt_tokens)
    ahead = len(prompt)

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor([0.0] * ahead + values, dtype=torch.float32)

    sequence = Batch(
        tokens=torch.tensor(prompt + sample.tokens, dtype=torch.int32),
        cu_seqlens=torch.tensor([0, ahead + len(sample.tokens)], dtype=torch.int32),
        sample_ids=[f"{item.group_id}#{sample.sample}"],
        token_columns={
            "loss_mask": torch.tensor([0] * ahead + [1] * len(sample.tokens), dtype=torch.uint8),
            "behaviour_logprobs": column(sample.behaviour_logprobs),
            "engine_logprobs": column(sample.engine_logprobs),
            "weight_version": torch.tensor([-1] * ahead + sample.versions, dtype=torch.int32),
        },
    )
    return rollout_pb2.Rollout(
        fence=item.fence,
        group_id=item.group_id,
        attempt=item.attempt,
        sample=sample.sample,
        worker=worker,
        sequence=encode(sequence),
        finish_reason=rollout_pb2.FINISH_REASON_STOP
        if sample.finish is Finish.STOP
        else rollout_pb2.FINISH_REASON_LENGTH,
        columns=item.columns,
        purpose=item.purpose,
        seconds=sample.seconds,
        response=sample.text,
    )


def failure_of(item: rollout_pb2.WorkItem, error: str, worker: str) -> rollout_pb2.Rollout:
    """A group that cannot be generated: a result too, which says why."""
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


def message_id(rollout: rollout_pb2.Rollout) -> str:
    """The same for every copy of a sample: the bus keeps the first."""
    return f"{rollout.fence}:{rollout.purpose}:{rollout.group_id}:{rollout.attempt}:{rollout.sample}"

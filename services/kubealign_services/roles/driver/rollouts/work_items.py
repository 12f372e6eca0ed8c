"""Work items for rollout workers, and the seeds that make samples repeatable."""

import json
from typing import Any

import xxhash

from kubealign.spec.sections.rollout import SamplingSpec
from kubealign.v1 import rollout_pb2


def derive_sample_seed(job_seed: int, purpose: str, group_id: str, attempt: int, sample: int) -> int:
    """Return a 64-bit seed for each (job, purpose, group, attempt, sample).

    A group's id contains its row and the pass over the row's source, so no two steps share one.
    """
    return xxhash.xxh3_64_intdigest(f"{job_seed}:{purpose}:{group_id}:{attempt}:{sample}".encode())


def to_sampling_proto(sampling: SamplingSpec) -> rollout_pb2.Sampling:
    """Return the sampling parameters as a protobuf message."""
    return rollout_pb2.Sampling(
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
    )


def encode_scoring_context(prompt: str, columns: dict[str, Any]) -> bytes:
    """Encode the prompt's text and the row's other columns, which the rewards receive with a group."""
    return json.dumps({"prompt": prompt, "columns": columns}, ensure_ascii=False).encode()

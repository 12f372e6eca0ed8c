"""Samples of a validation, from groups with their scores."""

import json

import torch

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import pack
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.roles.driver.validation.samples import collect_validation_samples


def test_the_sample_of_an_episode_is_its_last_sequence() -> None:
    batch = pack([[1, 2, 3], [4, 5]], ["v/0#0/0", "v/0#0/1"])
    batch.token_columns["loss_mask"] = torch.tensor([0, 1, 1, 0, 1], dtype=torch.uint8)
    batch.token_columns["engine_logprobs"] = torch.tensor([0, -1.0, -2.0, 0, -0.5])
    batch.sequence_columns["truncated"] = torch.tensor([1, 0], dtype=torch.uint8)
    message = encode(batch)
    rollout = rollout_pb2.Rollout(
        sequence=message,
        finish_reason=rollout_pb2.FINISH_REASON_STOP,
        columns=json.dumps({"prompt": "p", "columns": {"answer": 4}}).encode(),
        response="last",
    )
    group = RolloutGroup("v/0", 1, 0, deadline=0.0, requested_at=0.0, rollouts={0: rollout})
    group.scores[0, message.digest, "exact"] = scoring_pb2.Score(reward=0.5)
    (sample,) = collect_validation_samples([group], ["exact"])
    assert (sample.response, sample.length, sample.truncated) == ("last", 1, False)
    assert (sample.tokens, sample.logprobs) == ([5], [-0.5])
    assert (sample.scores, sample.columns) == ({"exact": 0.5}, {"answer": 4})

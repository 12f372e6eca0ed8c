"""Conversion of work items to engine requests and of samples to messages."""

from dataclasses import replace

import numpy as np

from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.generation.contract import FinishReason, GeneratedSample
from kubealign_services.roles.rollout.messages import (
    make_message_id,
    split_into_parts,
    to_failed_rollout,
    to_given_rollouts,
    to_rollout,
)
from kubealign_services.training.expert_routing import ROUTING

ITEM = rollout_pb2.WorkItem(
    fence=3,
    group_id="0/7",
    attempt=1,
    prompt_tokens=[5, 6],
    samples=2,
    seeds=[11, 12],
    sampling=rollout_pb2.Sampling(
        max_tokens=4, temperature=0.5, top_k=3, top_p=0.9, stop=["x"], stop_token_ids=[2]
    ),
    columns=b"{}",
    purpose="train",
)
SAMPLE = GeneratedSample(
    request_id="?",
    sample=1,
    tokens=[8, 2],
    behaviour_logprobs=[-0.5, -0.25],
    engine_logprobs=[-0.75, -0.5],
    versions=[4, 5],
    finish=FinishReason.LENGTH,
    text="h",
)


def test_recorded_experts_are_a_column_whose_last_token_is_marked() -> None:
    assert ROUTING not in decode(to_rollout(ITEM, SAMPLE, "rollout-0").sequence).token_columns
    record = np.arange(12).reshape(3, 2, 2).astype(np.uint8)
    message = to_rollout(ITEM, replace(SAMPLE, routing=record), "rollout-0")
    column = decode(message.sequence).token(ROUTING)
    assert column[:3].tolist() == record.tolist() and column[3].tolist() == [[255, 255], [255, 255]]
    # The environment's tokens that end a response of several turns have not been computed either.
    message = to_rollout(ITEM, replace(SAMPLE, routing=record[:2]), "rollout-0")
    assert (decode(message.sequence).token(ROUTING)[2:] == 255).all()


def test_the_request_key_contains_fence_and_attempt() -> None:
    ((request, first),) = [(part.request, part.first_sample) for part in split_into_parts(ITEM)]
    assert first == 0
    assert request.request_id == "3:train:0/7:1"
    assert (request.prompt_tokens, request.seeds) == ((5, 6), (11, 12))
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k, sampling.top_p) == (4, 0.5, 3, 0.9)
    assert (sampling.stop, sampling.stop_token_ids) == (("x",), (2,))


def test_the_last_samples_are_greedy_if_the_item_asks_for_it() -> None:
    item = rollout_pb2.WorkItem()
    item.CopyFrom(ITEM)
    item.greedy_samples = 1
    sampled, greedy = split_into_parts(item)
    assert (sampled.request.seeds, sampled.request.sampling.temperature, sampled.first_sample) == (
        (11,),
        0.5,
        0,
    )
    assert (greedy.request.seeds, greedy.request.sampling.temperature, greedy.first_sample) == ((12,), 0.0, 1)
    assert sampled.request.request_id != greedy.request.request_id
    # The first sample of the greedy part is the group's second.
    message = to_rollout(item, replace(SAMPLE, sample=0), "rollout-0", greedy.first_sample)
    assert (message.sample, decode(message.sequence).sample_ids) == (1, ["0/7#1"])
    assert message.temperature == 0.5  # that of its group


def test_the_last_samples_are_the_reference_s_if_the_item_asks_for_it() -> None:
    item = rollout_pb2.WorkItem()
    item.CopyFrom(ITEM)
    del item.seeds[:]
    item.seeds.extend([11, 12, 13, 14])
    item.greedy_samples, item.reference_samples = 1, 1
    parts = split_into_parts(item)
    assert [part.first_sample for part in parts] == [0, 2, 3]
    assert [part.request.seeds for part in parts] == [(11, 12), (13,), (14,)]
    assert [part.request.from_reference for part in parts] == [False, False, True]
    assert [part.request.sampling.temperature for part in parts] == [0.5, 0.0, 0.5]
    assert len({part.request.request_id for part in parts}) == 3


def test_columns_are_aligned_with_their_tokens() -> None:
    rollout = to_rollout(ITEM, SAMPLE, "rollout-0")
    sequence = decode(rollout.sequence)
    assert sequence.tokens.tolist() == [5, 6, 8, 2]
    assert sequence.token("loss_mask").tolist() == [0, 0, 1, 1]
    assert sequence.token("behaviour_logprobs").tolist() == [0.0, 0.0, -0.5, -0.25]
    assert sequence.token("engine_logprobs").tolist() == [0.0, 0.0, -0.75, -0.5]
    assert sequence.token("weight_version").tolist() == [-1, -1, 4, 5]
    assert rollout.finish_reason == rollout_pb2.FINISH_REASON_LENGTH
    assert (rollout.response, rollout.sample, rollout.attempt, rollout.fence) == ("h", 1, 1, 3)


def test_a_rollout_states_its_temperature() -> None:
    item = rollout_pb2.WorkItem()
    item.CopyFrom(ITEM)
    assert to_rollout(item, SAMPLE, "rollout-0").temperature == 0.5
    item.continuations.add(tokens=[8, 2])
    (given,) = to_given_rollouts(item, [[-0.5, -0.25]], 4, "rollout-0")
    assert given.temperature == 1.0
    item.sampling.temperature = 0.0
    # Log-probabilities of greedy samples are those at temperature 1.
    assert to_rollout(item, SAMPLE, "rollout-0").temperature == 1.0


def test_copies_share_a_message_id_and_other_attempts_do_not() -> None:
    first, copy = to_rollout(ITEM, SAMPLE, "rollout-0"), to_rollout(ITEM, SAMPLE, "rollout-1")
    assert make_message_id(first) == make_message_id(copy)
    again = rollout_pb2.WorkItem()
    again.CopyFrom(ITEM)
    again.attempt = 2
    assert make_message_id(to_rollout(again, SAMPLE, "rollout-0")) != make_message_id(first)


def test_a_failure_is_a_result_with_its_cause() -> None:
    failed = to_failed_rollout(ITEM, "the prompt has 9 tokens", "rollout-0")
    assert failed.finish_reason == rollout_pb2.FINISH_REASON_FAILED
    assert (failed.error, failed.group_id, failed.attempt) == ("the prompt has 9 tokens", "0/7", 1)
    first = to_rollout(ITEM, replace(SAMPLE, sample=failed.sample), "rollout-0")
    assert make_message_id(failed) != make_message_id(first), "the bus would drop it after the first sample"

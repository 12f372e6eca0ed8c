"""Temperatures of a batch: one scalar where all are equal, a sequence column otherwise."""

import pytest
import torch

from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import decode, encode
from kubealign_services.batch.packed import Batch, concatenate, pack
from kubealign_services.batch.temperatures import (
    rollout_temperature,
    sequence_temperatures,
    set_temperatures,
)


def three() -> Batch:
    return pack([[1, 2], [3], [4, 5, 6]], ["a", "b", "c"])


def test_equal_temperatures_are_the_scalar_alone() -> None:
    batch, earlier = three(), three()
    set_temperatures(batch, [0.5, 0.7, 0.7])
    set_temperatures(batch, [0.7, 0.7, 0.7])
    earlier.scalars["temperature"] = 0.7
    # The same bytes as in batches of earlier versions.
    assert encode(batch) == encode(earlier)
    assert sequence_temperatures(batch).tolist() == [0.7, 0.7, 0.7]


def test_different_temperatures_are_a_column_that_follows_its_sequences() -> None:
    batch = three()
    batch.scalars["temperature"] = 2.0
    set_temperatures(batch, [0.5, 0.7, 1.0])
    assert "temperature" not in batch.scalars
    assert batch.sequence("temperature").dtype == torch.float64
    decoded = decode(encode(batch))
    assert sequence_temperatures(decoded).tolist() == [0.5, 0.7, 1.0]
    assert sequence_temperatures(decoded.select([2, 0])).tolist() == [1.0, 0.5]
    doubled = sequence_temperatures(concatenate([batch, decoded]))
    assert doubled.tolist() == [0.5, 0.7, 1.0, 0.5, 0.7, 1.0]


def test_the_column_takes_precedence_and_the_default_is_1() -> None:
    batch = three()
    assert sequence_temperatures(batch).tolist() == [1.0, 1.0, 1.0]
    batch.scalars["temperature"] = 0.7
    assert sequence_temperatures(batch).tolist() == [0.7, 0.7, 0.7]
    batch.sequence_columns["temperature"] = torch.tensor([0.5, 0.25, 2.0])
    assert sequence_temperatures(batch).tolist() == [0.5, 0.25, 2.0]


def test_the_number_of_temperatures_is_checked() -> None:
    with pytest.raises(ValueError, match="2 temperatures for 3 sequences"):
        set_temperatures(three(), [1.0, 1.0])


def test_a_rollout_of_an_earlier_version_has_the_default() -> None:
    earlier = rollout_pb2.Rollout.FromString(rollout_pb2.Rollout(group_id="0/1").SerializeToString())
    assert rollout_temperature(earlier, 0.7) == 0.7
    stated = rollout_pb2.Rollout.FromString(rollout_pb2.Rollout(temperature=0.5).SerializeToString())
    assert rollout_temperature(stated, 0.7) == 0.5

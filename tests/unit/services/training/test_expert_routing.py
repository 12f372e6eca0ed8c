"""The column of recorded experts: its dtype, its marks, and its way through a batch."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from kubealign.planning.model.routing_record import max_routing_record_bytes, routing_record_bytes
from kubealign_services.batch.codec import decode, encode
from kubealign_services.batch.packed import Batch, concatenate, pack
from kubealign_services.data.prepared_files import read_routing_record_bytes
from kubealign_services.training.expert_routing import (
    ROUTING,
    RoutingShape,
    check_routing,
    gate_weights,
    routing_column,
    without_routing,
)
from kubealign_services.training.torch_backend.model.routing_replay import recorded_experts
from kubealign_services.training.torch_backend.packing.shared_prompts import find_prompts, share_prompts

CPU = torch.device("cpu")


def batch_of(*records: np.ndarray) -> Batch:
    """Return sequences with one more token than each record, of which the first two are one prompt."""
    lengths = [len(record) + 1 for record in records]
    batch = pack([[*range(length)] for length in lengths], [str(i) for i in range(len(lengths))])
    batch.token_columns["loss_mask"] = (batch.positions > 1).to(torch.uint8)
    columns = [routing_column(record, length) for record, length in zip(records, lengths, strict=True)]
    batch.token_columns[ROUTING] = torch.cat(columns)
    return batch


@pytest.mark.parametrize(("experts", "dtype", "mark"), [(8, np.uint8, 255), (256, np.int16, -1)])
def test_the_dtype_follows_from_the_number_of_experts(experts: int, dtype: type, mark: int) -> None:
    shape = RoutingShape(layers=3, experts=experts, top_k=2)
    record = np.arange(12).reshape(2, 3, 2).astype(shape.dtype) % experts
    assert shape.dtype == dtype and shape.unrecorded == mark
    # One token beyond the record besides the last.
    column = routing_column(record, 4)
    assert column.shape == (4, 3, 2) and (column[2:] == mark).all()
    assert column.numpy().nbytes == 4 * routing_record_bytes(3, experts, 2)
    check_routing(column, shape)
    with pytest.raises(ValueError, match="names expert"):
        check_routing(torch.where(column == mark, mark, column + experts), RoutingShape(3, experts, 2))


def test_255_experts_fit_into_a_byte_with_their_mark() -> None:
    assert RoutingShape(1, 255, 1).dtype == np.uint8 and RoutingShape(1, 256, 1).dtype == np.int16
    column = routing_column(np.full((2, 1, 1), 254, np.uint8), 3)
    check_routing(column, RoutingShape(1, 255, 1))
    batch = batch_of(np.full((2, 1, 1), 254, np.uint8))
    experts = recorded_experts(batch, slice(None), CPU)
    assert experts is not None and experts.tolist() == [[[254], [254], [-1]]]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_the_column_travels_and_is_packed_by_layer(dtype: type) -> None:
    first, second = (np.arange(size * 4).reshape(size, 2, 2).astype(dtype) for size in (3, 4))
    batch = batch_of(first, second)
    sent = decode(encode(concatenate([batch.select([1]), batch.select([0])])))
    assert sent.token(ROUTING).dtype == batch.token(ROUTING).dtype
    assert torch.equal(sent.token(ROUTING), torch.cat([batch.token(ROUTING)[4:], batch.token(ROUTING)[:4]]))
    experts = recorded_experts(batch, torch.tensor([0, 3, 5]), CPU)
    assert experts is not None
    assert experts.tolist() == [[[0, 1], [-1, -1], [4, 5]], [[2, 3], [-1, -1], [6, 7]]]
    assert recorded_experts(without_routing(batch), slice(None), CPU) is None
    assert ROUTING in batch.token_columns and "loss_mask" in without_routing(batch).token_columns


def test_prompts_with_other_experts_are_not_shared() -> None:
    record = np.arange(16).reshape(4, 2, 2).astype(np.uint8)
    same = batch_of(record, record[:3])
    pack_of_same = share_prompts(same)
    assert pack_of_same is not None and len(pack_of_same.computed_indices) == 5 + 4 - 2
    changed = record.copy()
    changed[1, 1, 0] += 1
    other = batch_of(record, changed)
    assert share_prompts(other) is None
    assert len({prompt.key for prompt in find_prompts(other)}) == 2
    changed = record.copy()
    changed[2, 1, 0] += 1
    assert share_prompts(batch_of(record, changed)) is not None, "the first response token is no prompt"


def test_gate_weights_are_the_softmax_at_the_given_experts() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]], dtype=torch.float64)
    total = sum(torch.tensor([0.0, 1.0, 2.0, 3.0]).exp())
    given = torch.tensor([[2, 0]])
    plain = gate_weights(logits, given, False, torch.float64)
    assert plain[0].tolist() == pytest.approx([float(np.exp(2.0) / total), float(1 / total)], abs=1e-6)
    normalised = gate_weights(logits, given, True, torch.float64)
    assert normalised[0].tolist() == pytest.approx(
        [float(np.exp(2.0) / (np.exp(2.0) + 1)), float(1 / (np.exp(2.0) + 1))], abs=1e-6
    )


def test_the_size_of_a_record_is_read_from_the_prepared_policy(tmp_path: Path) -> None:
    assert read_routing_record_bytes(tmp_path) == 0
    config = {"num_hidden_layers": 6, "num_local_experts": 300, "num_experts_per_tok": 4}
    folder = tmp_path / "prepared"
    (folder / "policy").mkdir(parents=True)
    (folder / "models.json").write_text(json.dumps({"policy": "policy"}))
    (folder / "policy" / "config.json").write_text(json.dumps(config))
    assert read_routing_record_bytes(tmp_path) == max_routing_record_bytes(config) == 6 * 4 * 2
    assert max_routing_record_bytes({}) == 32 * 8

"""The weights file: tensors survive a round trip, and damage is reported by tensor name."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from kubealign_services.generation.triton_engine.weights_file import read_weights, write_weights

WEIGHTS: dict[str, Tensor] = {
    "wide": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "turned": torch.arange(6, dtype=torch.float16).reshape(2, 3).T,
    "empty": torch.empty(0, 4),
    "scalar": torch.tensor(3.0),
}


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_text("left by a worker that was killed, and longer than what comes now" * 99)
    entries = write_weights(path, WEIGHTS.items())
    assert [entry["offset"] for entry in entries] == [0, 64, 128, 192, 192]
    with read_weights(path, entries) as tensors:
        loaded = {name: tensor.clone() for name, tensor in tensors}
    assert loaded.keys() == WEIGHTS.keys()
    for name, tensor in WEIGHTS.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)


def test_empty_file(tmp_path: Path) -> None:
    entries = write_weights(tmp_path / "weights", [])
    with read_weights(tmp_path / "weights", entries) as tensors:
        assert list(tensors) == []


def test_damage_is_reported_by_name(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    entries = write_weights(path, WEIGHTS.items())
    data = bytearray(path.read_bytes())
    data[65] ^= 1
    path.write_bytes(data)
    with read_weights(path, entries) as tensors, pytest.raises(ValueError, match="half has another checksum"):
        dict(tensors)
    path.write_bytes(data[:130])
    with (
        read_weights(path, entries[2:]) as tensors,
        pytest.raises(ValueError, match="turned ends at byte 140"),
    ):
        dict(tensors)
    with pytest.raises(ValueError, match=r"ids has dtype torch\.int64; weights are F32, BF16, F16"):
        write_weights(path, [("ids", torch.arange(3))])

"""What frozen models said is found again for the same tokens, by a later attempt too; never for others."""

from pathlib import Path

import pytest
import torch

from kubealign_services.batch.packed import Batch, pack
from kubealign_services.driver.frozen_cache import FrozenCache, first_of_each


def batch(*sequences: list[int], masked: int = 1) -> Batch:
    made = pack(sequences, [str(i) for i in range(len(sequences))])
    made.token_columns["loss_mask"] = (made.positions >= masked).to(torch.uint8)
    return made


def columns(of: Batch) -> dict[str, torch.Tensor]:
    """Numbers that tell each token's place, in one column and in three."""
    places = torch.arange(len(of.tokens), dtype=torch.float32)
    return {"a": places, "b": torch.stack([places, places + 0.25, places + 0.5], 1)}


def test_what_is_kept_is_found_by_the_next_attempt(tmp_path: Path) -> None:
    first = batch([1, 2, 3], [4, 5])
    kept = FrozenCache(tmp_path / "frozen", "reference", 1)
    assert kept.find(first) == [None, None]
    kept.add(first, columns(first))
    for cache in (kept, FrozenCache(tmp_path / "frozen", "reference", 2)):
        found = cache.find(batch([4, 5], [1, 2, 3], [9]))
        assert found[2] is None
        assert found[0] is not None and found[1] is not None
        assert found[0]["a"].tolist() == [3, 4] and found[1]["a"].tolist() == [0, 1, 2]
        assert found[0]["b"].tolist() == [[3, 3.25, 3.5], [4, 4.25, 4.5]]


def test_attempts_write_files_of_their_own_and_read_all(tmp_path: Path) -> None:
    old, new = FrozenCache(tmp_path, "reference", 1), FrozenCache(tmp_path, "reference", 2)
    one, two = batch([1, 2]), batch([3, 4])
    old.add(one, columns(one))
    new.add(two, columns(two))
    old.add(one, columns(one))
    both = FrozenCache(tmp_path, "reference", 3)
    assert len(both) == 2 and None not in both.find(batch([1, 2], [3, 4]))
    assert len(FrozenCache(tmp_path, "teacher", 3)) == 0


def test_another_mask_is_another_sequence(tmp_path: Path) -> None:
    kept = FrozenCache(tmp_path, "reference", 1)
    one = batch([1, 2, 3])
    kept.add(one, columns(one))
    assert kept.find(batch([1, 2, 3], masked=2)) == [None]


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_record_that_was_cut_short_is_not_there(tmp_path: Path, cut: int) -> None:
    one, two = batch([1, 2, 3]), batch([4, 5, 6])
    kept = FrozenCache(tmp_path, "reference", 1)
    kept.add(one, columns(one))
    kept.add(two, columns(two))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-cut])
    again = FrozenCache(tmp_path, "reference", 2)
    found = again.find(batch([1, 2, 3], [4, 5, 6]))
    assert found[0] is not None and found[1] is None
    again.add(two, columns(two))
    assert None not in FrozenCache(tmp_path, "reference", 3).find(batch([1, 2, 3], [4, 5, 6]))


def test_a_record_that_was_altered_is_not_there(tmp_path: Path) -> None:
    one = batch([1, 2, 3])
    FrozenCache(tmp_path, "reference", 1).add(one, columns(one))
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    again = FrozenCache(tmp_path, "reference", 2)
    assert again.find(one) == [None]
    assert len(again) == 0


def test_sequences_that_are_alike_are_named_once() -> None:
    several = batch([1, 2], [3], [1, 2], [1, 2, 3], [3])
    assert first_of_each(several, [0, 1, 2, 3, 4]) == [0, 1, 3]
    assert first_of_each(several, [2, 4]) == [2, 4]

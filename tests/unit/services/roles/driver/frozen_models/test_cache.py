"""Cache of frozen models' scores: found again for equal tokens, also by a later attempt, and never for
others.
"""

from pathlib import Path

import pytest
import torch

from kubealign_services.batch.packed import Batch, pack
from kubealign_services.roles.driver.frozen_models.cache import FrozenScoreCache, select_unique


def batch(*sequences: list[int], masked: int = 1) -> Batch:
    packed = pack(sequences, [str(i) for i in range(len(sequences))])
    packed.token_columns["loss_mask"] = (packed.positions >= masked).to(torch.uint8)
    return packed


def columns(of: Batch) -> dict[str, torch.Tensor]:
    """Return numbers that identify each token's position, in one column and in three."""
    places = torch.arange(len(of.tokens), dtype=torch.float32)
    return {"a": places, "b": torch.stack([places, places + 0.25, places + 0.5], 1)}


def test_the_next_attempt_finds_cached_scores(tmp_path: Path) -> None:
    first = batch([1, 2, 3], [4, 5])
    first_cache = FrozenScoreCache(tmp_path / "frozen", "reference", 1)
    assert first_cache.find(first) == [None, None]
    first_cache.add(first, columns(first))
    for cache in (first_cache, FrozenScoreCache(tmp_path / "frozen", "reference", 2)):
        cached = cache.find(batch([4, 5], [1, 2, 3], [9]))
        assert cached[2] is None
        assert cached[0] is not None and cached[1] is not None
        assert cached[0]["a"].tolist() == [3, 4] and cached[1]["a"].tolist() == [0, 1, 2]
        assert cached[0]["b"].tolist() == [[3, 3.25, 3.5], [4, 4.25, 4.5]]


def test_attempts_write_files_of_their_own_and_read_all(tmp_path: Path) -> None:
    old, new = FrozenScoreCache(tmp_path, "reference", 1), FrozenScoreCache(tmp_path, "reference", 2)
    one, two = batch([1, 2]), batch([3, 4])
    old.add(one, columns(one))
    new.add(two, columns(two))
    old.add(one, columns(one))
    both = FrozenScoreCache(tmp_path, "reference", 3)
    assert len(both) == 2 and None not in both.find(batch([1, 2], [3, 4]))
    assert len(FrozenScoreCache(tmp_path, "teacher", 3)) == 0


def test_the_loss_mask_is_part_of_the_key(tmp_path: Path) -> None:
    cache = FrozenScoreCache(tmp_path, "reference", 1)
    one = batch([1, 2, 3])
    cache.add(one, columns(one))
    assert cache.find(batch([1, 2, 3], masked=2)) == [None]


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_truncated_record_counts_as_missing(tmp_path: Path, cut: int) -> None:
    one, two = batch([1, 2, 3]), batch([4, 5, 6])
    cache = FrozenScoreCache(tmp_path, "reference", 1)
    cache.add(one, columns(one))
    cache.add(two, columns(two))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-cut])
    again = FrozenScoreCache(tmp_path, "reference", 2)
    cached = again.find(batch([1, 2, 3], [4, 5, 6]))
    assert cached[0] is not None and cached[1] is None
    again.add(two, columns(two))
    assert None not in FrozenScoreCache(tmp_path, "reference", 3).find(batch([1, 2, 3], [4, 5, 6]))


def test_an_altered_record_counts_as_missing(tmp_path: Path) -> None:
    one = batch([1, 2, 3])
    FrozenScoreCache(tmp_path, "reference", 1).add(one, columns(one))
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    again = FrozenScoreCache(tmp_path, "reference", 2)
    assert again.find(one) == [None]
    assert len(again) == 0


def test_equal_sequences_are_selected_once() -> None:
    several = batch([1, 2], [3], [1, 2], [1, 2, 3], [3])
    assert select_unique(several, [0, 1, 2, 3, 4]) == [0, 1, 3]
    assert select_unique(several, [2, 4]) == [2, 4]

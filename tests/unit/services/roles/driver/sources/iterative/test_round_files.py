"""Round files: found by weights and prompts, or not at all."""

from pathlib import Path
from typing import Any

import pytest

from kubealign_services.algorithms.iterative.rounds import RoundPrompt, RoundResponse, RoundRow, pack_rows
from kubealign_services.data.epoch_shuffle import EpochCursor
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.sources.iterative.round_files import (
    DataPosition,
    RoundFiles,
    RoundHeader,
)

HERE, AFTER = (
    DataPosition(cursor=EpochCursor(0, 3), unfinished=["0/1"]),
    DataPosition(cursor=EpochCursor(1, 0), unfinished=[]),
)


def header(**changes: Any) -> RoundHeader:
    fields: dict[str, Any] = {
        "round": 2,
        "fence": 1,
        "version": 7,
        "weights": "w7",
        "begins": HERE,
        "ends": AFTER,
        "prompts": ["0/1", "0/3"],
        "given_up": [],
        "rewards": {"task": {"count": 2.0}},
        "figures": {"round/reward_mean": 0.5},
        "unit": 2,
    }
    return RoundHeader(**(fields | changes))


def batch(last: int = 9) -> Any:
    prompt = RoundPrompt("0/1", [1], [])
    pairs = [
        RoundRow(prompt, (RoundResponse(f"{k}+", [2, k]), RoundResponse(f"{k}-", [last]))) for k in (3, 4, 5)
    ]
    return pack_rows(pairs)


def test_a_round_is_read_back(tmp_path: Path) -> None:
    files = RoundFiles(tmp_path)
    written = files.write(header(), batch())
    assert written.file == "round-000002-fence-1"
    assert [path.name for path in (tmp_path / "rounds").iterdir()] == [written.file]
    for stored in (files.read(written.file, written.digest), files.find(2, "w7", HERE)):
        assert stored is not None
        assert stored.header == header() and stored.digest == written.digest and stored.rows == 3
        assert stored.batch.tokens.tolist() == batch().tokens.tolist()
        assert stored.select_rows([2, 0]).sample_ids == ["5+", "5-", "3+", "3-"]


def test_other_weights_or_another_data_position_is_another_round(tmp_path: Path) -> None:
    """A rollback, for example, gives the same version with different weights."""
    files = RoundFiles(tmp_path)
    files.write(header(), batch())
    assert files.find(2, "w7 made again", HERE) is None
    assert files.find(2, "w7", AFTER) is None
    assert files.find(3, "w7", HERE) is None


def test_a_regenerated_round_replaces_no_file_that_a_state_may_name(tmp_path: Path) -> None:
    files = RoundFiles(tmp_path)
    first = files.write(header(), batch())
    second = files.write(header(fence=2, weights="other"), batch(last=8))
    assert first.file != second.file
    assert files.read(first.file, first.digest).header.weights == "w7"
    stored = files.find(2, "other", HERE)
    assert stored is not None and stored.digest == second.digest


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-5], lambda data: b"", lambda data: data[:-9] + b"x" * 9]
)
def test_a_damaged_file_is_regenerated_at_the_start_and_fails_the_job_later(
    tmp_path: Path, damage: Any
) -> None:
    files = RoundFiles(tmp_path)
    written = files.write(header(), batch())
    path = tmp_path / "rounds" / written.file
    path.write_bytes(damage(path.read_bytes()))
    assert files.find(2, "w7", HERE) is None
    with pytest.raises(UnrecoverableError, match="the job is in the middle of this round: restore the file"):
        files.read(written.file, written.digest)


def test_a_missing_or_other_file_fails_the_job(tmp_path: Path) -> None:
    files = RoundFiles(tmp_path)
    with pytest.raises(UnrecoverableError, match=r"No such file.*round-000002-fence-1"):
        files.read("round-000002-fence-1", "d")
    written = files.write(header(), batch())
    with pytest.raises(UnrecoverableError, match="the job trains on 0000: the job is in the middle"):
        files.read(written.file, "0000")

"""Truncation of termination messages."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign.pod_contract import TERMINATION_BYTES
from kubealign_services.runtime.process.termination_message import truncate_message, write_termination_message


def test_short_message_is_unchanged() -> None:
    assert truncate_message("no column reward", 16) == b"no column reward"


def test_long_message_keeps_its_beginning_and_end() -> None:
    message = "spec.data: row 7 " + "x" * 9000 + " has no column answer"
    short = truncate_message(message, TERMINATION_BYTES)
    assert len(short) == TERMINATION_BYTES
    assert short.startswith(b"spec.data: row 7 xxx")
    assert short.endswith(b"xxx has no column answer")
    assert b" [...] " in short


@settings(deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=[]), max_size=80), st.integers(20, 90))
def test_result_is_valid_text_within_the_limit(message: str, limit: int) -> None:
    short = truncate_message(message, limit)
    assert len(short) <= limit
    short.decode()


def test_message_is_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    path.write_text("the cause of the time before, which was longer")
    before = path.stat().st_ino
    write_termination_message(path, "no column reward")
    assert path.read_text() == "no column reward"
    # A container's message file is a mount of its own and cannot be replaced.
    assert path.stat().st_ino == before


def test_unwritable_path_is_only_logged(tmp_path: Path) -> None:
    write_termination_message(tmp_path, "no column reward")

"""Readers of growing JSON lines files."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.client.backends.local import json_lines
from kubealign.client.backends.local.json_lines import objects_after, objects_from_end
from kubealign.client.backends.local.metrics import read_last_step, read_metrics, read_samples
from kubealign.client.errors import JobInvalid
from kubealign.read_model import STREAM_START

LINES = st.lists(
    st.one_of(
        st.integers(0, 99).map(lambda n: json.dumps({"n": n, "text": "x" * n}).encode()),
        # Truncated by a kill, then continued by another writer.
        st.sampled_from([b"", b'{"n": 3, "te', b"[1]", b'{"n": {"n": 1}']),
    ),
    max_size=12,
)


@given(LINES, st.booleans(), st.integers(1, 40))
def test_reading_from_the_end_reverses_reading_from_the_start(
    lines: list[bytes], ends_with_newline: bool, block: int
) -> None:
    text = b"\n".join(lines) + (b"\n" if ends_with_newline else b"")
    before = json_lines._BLOCK_BYTES
    json_lines._BLOCK_BYTES = block
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines"
        path.write_bytes(text)
        forwards = list(objects_after(path, STREAM_START))
        assert list(objects_from_end(path))[::-1] == forwards
        for index, (entry, _) in enumerate(forwards):
            assert list(objects_after(path, entry)) == forwards[index + 1 :]
    json_lines._BLOCK_BYTES = before


def test_entry_within_a_line_resumes_at_the_next_line(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text('{"n": 1}\n{"n": 2}\n')
    assert [value for _, value in objects_after(path, "3-0")] == [{"n": 2}]
    # Entry of a longer file that was replaced.
    assert [value for _, value in objects_after(path, "999-0")] == [{"n": 1}, {"n": 2}]
    assert list(objects_after(tmp_path / "none", STREAM_START)) == []
    assert list(objects_from_end(tmp_path / "none")) == []


@pytest.mark.parametrize("entry", ["", "x", "-1-0", "1-x", "1.5-0"])
def test_invalid_entry_is_refused(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "lines"
    path.write_text("{}\n")
    with pytest.raises(JobInvalid, match="after: must be an entry"):
        list(objects_after(path, entry))


def test_metrics_are_read_while_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_last_step(path) is None
    lines = [
        {"step": 0, "fence": 1, "time": 1.0, "val/loss": 2.0},
        {"step": 1, "fence": 1, "time": 2.0, "sft/loss": 1.5, "bad": "text", "nan": "nan"},
        {"step": 1, "fence": 1, "time": 3.0, "val/loss": 1.25},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 2, "fe')
    read = read_metrics(path, STREAM_START, 2)
    assert [(m.step, m.fence, sorted(m.values)) for m in read] == [
        (0, 1, ["val/loss"]),
        (1, 1, ["nan", "sft/loss"]),
    ]
    with path.open("a") as file:
        file.write('nce": 1, "sft/loss": 1.0}\n')
    rest = read_metrics(path, read[-1].entry, 10)
    assert [(m.step, m.values) for m in rest] == [(1, {"val/loss": 1.25}), (2, {"sft/loss": 1.0})]
    newest = read_last_step(path)
    assert newest is not None and newest.step == 2


def test_samples_are_selected_by_step_and_newest(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    # Step 2 was repeated after a rollback.
    samples = [(1, "a"), (2, "old"), (3, "old"), (2, "b"), (2, "c"), (3, "d")]
    path.write_text("".join(json.dumps({"step": s, "response": r, "prompt": ""}) + "\n" for s, r in samples))

    def responses(**options: object) -> list[str]:
        options = {"after": STREAM_START, "count": 10, "step": None, "newest": False} | options
        return [sample.response for sample in read_samples(path, **options)]  # type: ignore[arg-type]

    assert responses() == ["a", "old", "old", "b", "c", "d"]
    assert responses(newest=True, count=2) == ["d", "c"]
    assert responses(step=2) == ["b", "c"]
    assert responses(step=2, newest=True, count=1) == ["c"]
    assert responses(step=9) == []
    after = read_samples(path, STREAM_START, 4, step=None, newest=False)[-1].entry
    assert responses(after=after) == ["c", "d"]
    assert responses(after=after, newest=True) == ["d", "c"]

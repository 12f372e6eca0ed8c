"""Labels in a file of the run directory."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from kubealign.client.backends.local.labels import append_label, read_labels
from kubealign.human_labels import HumanLabel, LabelledResponse, Verdict

LABEL = HumanLabel("s", Verdict.WRONG, "ann", 1.0, "p", "prompt", LabelledResponse("default", "a", 0, "é\n"))
_WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from kubealign.client.backends.local.labels import append_label, read_labels
(label,) = read_labels(Path(sys.argv[1]))[:1]
for index in range(50):
    append_label(Path(sys.argv[1]), replace(label, subject=f"{sys.argv[2]}-{index}", prompt="x" * 20_000))
"""


def test_labels_of_concurrent_processes_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    assert read_labels(path) == []
    append_label(path, LABEL)
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, path, str(number)]) for number in range(3)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    labels = read_labels(path)
    assert labels[0] == LABEL
    expected = {f"{number}-{index}" for number in range(3) for index in range(50)}
    assert {label.subject for label in labels[1:]} == expected


def test_a_partial_line_loses_no_further_label(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    append_label(path, LABEL)
    with path.open("a") as file:
        file.write(LABEL.to_json()[:20])
    later = replace(LABEL, subject="later", prompt="\udcff")
    append_label(path, later)
    assert [label.subject for label in read_labels(path)] == ["s", "later"]

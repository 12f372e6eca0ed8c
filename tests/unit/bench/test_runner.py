"""The benchmark runner: verdicts, results on disk, and imports of every line and peer."""

import ast
import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench import jobs, render, rows
from tests.bench.bystander import Served
from tests.bench.chart import Bar, chart
from tests.bench.line import Aim, Bench, Form, Line, Outcome
from tests.bench.lines.joining import joined
from tests.bench.registry import LINES
from tests.bench.results import Result, keep, made, newest
from tests.bench.side import Side
from tests.bench.watch import Moment, Usage
from tests.bench.workload import TINY

from kubealign.spec.job import AlignmentJob

BENCH = Path(render.__file__).parent


def result(line: str = "one", form: Form = Form.QUICK, **figures: float) -> Result:
    machine = {
        "cores": 2,
        "processor": "a processor",
        "memory_gib": 23.0,
        "accelerator": None,
        "python": "3.11",
        "versions": {"torch": "2.15"},
    }
    made_line = Line(line, "", "", (), lambda bench: Outcome({}))
    return made(made_line, form, Outcome(figures), 0.0, 0.0, machine)


def test_aim_is_a_lower_or_upper_bound() -> None:
    times = Aim("times", "times TRL", 8.0)
    assert [times.met({"times": value}) for value in (7.9, 8.0, 8.1)] == [False, True, True]
    share = Aim("size", "of the bytes", 0.04, at_least=False, percent=True)
    assert [share.met({"size": value}) for value in (0.039, 0.04, 0.041)] == [True, True, False]
    assert times.met({"other": 9.0}) is None
    assert (times.bound_text(), share.bound_text()) == ("at least 8", "at most 4.0%")


def test_the_newest_result_of_a_line_is_the_full_one(tmp_path: Path) -> None:
    keep(result("one", Form.FULL, times=9.0), tmp_path)
    keep(result("one", Form.QUICK, times=5.0), tmp_path)
    keep(result("two", Form.QUICK, times=5.0), tmp_path)
    keep(result("two", Form.QUICK, times=6.0), tmp_path)
    keep(result("three", Form.TINY, times=6.0), tmp_path)
    results = newest(tmp_path, ["two", "one", "three"])
    assert {name: each.figures["times"] for name, each in results.items()} == {"two": 6.0, "one": 9.0}
    assert results["one"].command == "python -m tests.bench one --full"


def test_the_table_says_what_is_met_and_what_is_not_measured() -> None:
    aims = (Aim("times", "times TRL", 8.0), Aim("memory", "of TRL's memory", 0.3, at_least=False))
    lines = {"one": Line("one", "a step", "TRL", aims, lambda bench: Outcome({}))}
    table = render.table(lines, {"one": result(times=11.25, memory=0.41)})
    assert table.splitlines()[2:] == [
        "| a step (`one`) | TRL | times TRL: at least 8 | 11.2 | yes |",
        "|  |  | of TRL's memory: at most 0.3 | 0.41 | **no** |",
    ]
    assert render.table(lines, {}).splitlines()[2].endswith("| times TRL: at least 8 | - | - |")


def test_results_of_several_machines_name_their_machine() -> None:
    one, other = result("one"), result("other")
    alone = render.circumstances({"one": one})
    assert alone.startswith("2 cores (a processor), 23 GiB, no GPU; Python 3.11, torch 2.15.")
    assert render.circumstances({"one": one, "other": other}).startswith("2 cores (a processor)")
    other = replace(other, machine=other.machine | {"processor": "another"})
    text = render.circumstances({"one": one, "other": other, "third": one}).splitlines()
    assert [line.partition(" GiB")[0] for line in text[:2]] == [
        "one, third: 2 cores (a processor), 23",
        "other: 2 cores (another), 23",
    ]


def test_only_text_between_known_markers_is_written() -> None:
    page = "a\n<!-- bench: table -->\nold\n<!-- end -->\nb\n<!-- bench: other -->\nkept\n<!-- end -->\n"
    assert render.written(page, {"table": "new"}) == page.replace("old", "new")
    with pytest.raises(ValueError, match="2 places begin"):
        render.written(page.replace("kept\n<!-- end -->", "kept"), {"table": "new"})


def test_the_page_has_a_place_for_the_table() -> None:
    page = (BENCH.parents[1] / "docs" / "benchmarks.md").read_text()
    written = render.written(page, {"table": "<the table>", "circumstances": "<the machine>"})
    assert written.count("<the table>") == written.count("<the machine>") == 1


def test_bar_points_right_when_its_aim_is_met() -> None:
    drawn = chart([Bar("twice", "16 (at least 8)", 2.0), Bar("half", "4 <of> 8", 0.5)], "a title")
    # The scale is logarithmic from a half to twice, so the aim is in the middle of 380 units, which begin 8
    # units right of the longer label of five letters of 7 units.
    assert '<rect x="233.0" y="46" width="190.0" height="14" fill="#2f6fb0"/>' in drawn
    assert '<rect x="43.0" y="72" width="190.0" height="14" fill="#c7691a"/>' in drawn
    assert '<text x="35" y="57" text-anchor="end">twice</text>' in drawn
    assert "4 &lt;of&gt; 8" in drawn
    with pytest.raises(ValueError, match="above 0"):
        chart([Bar("none", "", 0.0)], "")


def test_the_steps_before_the_warm_up_ends_do_not_count() -> None:
    side = Side("kubealign")
    moments = [Moment(float(t), {"trainer": 0.5 * t}, 2.0 * t, {"trainer": 100 + t}) for t in range(10)]
    lines = [
        {"time": 3.0, "batch/tokens": 10, "seconds/step": 3.0, "seconds/train": 3.0},
        {"time": 5.0, "batch/tokens": 10, "seconds/step": 2.0, "seconds/train": 1.0},
        {"time": 9.0, "batch/tokens": 20, "seconds/step": 4.0, "seconds/train": 3.0},
    ]
    side.add(lines, Usage(moments), warmup=1)
    assert side.step_seconds == 3.0
    assert side.rest() == 1.0
    assert side.tokens_per_second() == 5.0
    # From 3 to 9 s the trainer used half a core, of two busy cores.
    assert side.cpu_seconds_by_group() == {"trainer": 1.5}
    assert side.others_cores == [1.5]
    assert side.peak_bytes_of_all == 109
    with pytest.raises(RuntimeError, match="made 1 steps, 1 of them warm-up"):
        side.add(lines[:1], Usage(moments), warmup=1)


def test_a_worker_that_joins_is_followed_until_it_serves() -> None:
    seen = [Served(1.0, "rollout-0", "0/1"), Served(13.5, "rollout-1", "0/9"), Served(14.0, "rollout-1", "")]
    ends, seconds, waits = [5.0, 10.0, 16.0], [5.0, 5.0, 6.0], [0.1, 0.3, 0.2]
    assert joined(ends, seconds, waits, 8.0, seen) == pytest.approx(
        {
            "ready_seconds": 5.5,
            "steps_until": 1.0,
            "waited_seconds": 0.2,
            "step_ratio": 1.2,
            "step_before": 5.0,
        }
    )
    with pytest.raises(RuntimeError, match="served nothing"):
        joined(ends, seconds, waits, 8.0, seen[:1])
    with pytest.raises(RuntimeError, match="in the first step"):
        joined(ends, seconds, waits, 4.0, seen)


def test_every_line_has_a_name_and_aims_of_its_own() -> None:
    assert len(LINES) >= 15
    for line in LINES.values():
        assert line.title
        assert line.against
        assert line.aims
        assert len({aim.figure for aim in line.aims}) == len(line.aims)


@pytest.mark.parametrize("path", sorted((BENCH / "peers").glob("*.py")), ids=lambda path: path.stem)
def test_every_peer_can_import_its_names_of_kubealign(path: Path) -> None:
    """Check the imports only: TRL, which some peers need, is not installed in the test environments."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("kubealign", "tests.")):
            module = importlib.import_module(str(node.module))
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")


@pytest.mark.parametrize("method", ["rloo", "grpo", "ppo"])
@pytest.mark.parametrize("longest", [None, 48])
def test_the_jobs_are_valid(tmp_path: Path, method: str, longest: int | None) -> None:
    job = jobs.online(TINY.doing(method=method, longest=longest), tmp_path, "bench", 3)
    AlignmentJob.model_validate(job)


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_rows_have_ragged_lengths(tmp_path: Path, method: str) -> None:
    workload = TINY.doing(method=method, longest=48)
    AlignmentJob.model_validate(
        jobs.offline(workload, tmp_path, "bench", 3, tmp_path / rows.ROWS, rows_per_step=16)
    )
    rows.write(workload, tmp_path, 2, 16)
    written = [json.loads(line) for line in (tmp_path / rows.ROWS).read_text().splitlines()]
    names = ["response"] if method == "sft" else ["chosen", "rejected"]
    assert len(written) == 32
    for name in names:
        lengths = [len(row[name].split()) for row in written[:16]]
        assert (max(lengths), sum(lengths)) == (48, 16 * 12)
    assert max(map(rows.tokens_of, written)) == 32 + 48 + 1


def test_a_line_is_given_the_work_of_its_form(tmp_path: Path) -> None:
    full = Bench(Form.FULL, tmp_path, print)
    assert (full.tailed.longest, full.tailed.sequences, full.tailed.hidden) == (512, 64, 512)
    assert full.workload.longest is None
    assert full.pick(1, 2, 3) == 3

"""Records of the recipes' runs, the runs that are left, and the published pages."""

from pathlib import Path
from typing import Any

import pytest
from tests.bench.recipes.__main__ import missing_runs
from tests.bench.recipes.page import plot_arguments, read_measured, render_pages
from tests.bench.recipes.recipe import RECIPES
from tests.bench.recipes.records import (
    OURS,
    PAGES,
    PEER,
    RunRecord,
    read_records,
    record_path,
    select_rows,
    write_record,
)

MACHINE: dict[str, Any] = {
    "cores": 2,
    "processor": "a processor",
    "memory_gib": 8.0,
    "versions": {"torch": "2"},
}


def record(side: str, seed: int, last: float) -> RunRecord:
    return RunRecord(
        "grpo",
        side,
        seed,
        f"run {side} {seed}",
        "2026-01-02 03:04",
        90.0,
        0.25,
        MACHINE,
        [
            {"step": 0, "val/reward/right": 0.02},
            {"step": 1, "seconds/step": 4.0, "reward/mean": 0.1},
            {"step": 2, "seconds/step": 8.0, "reward/mean": 0.2, "val/reward/right": last},
        ],
    )


def test_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    for seed in (2, 1):
        write_record(tmp_path, record(OURS, seed, 0.5))
    write_record(tmp_path, record(PEER, 1, 0.4))
    assert read_records(tmp_path, "grpo", OURS) == [record(OURS, 1, 0.5), record(OURS, 2, 0.5)]
    assert not list(tmp_path.rglob("*.partial"))


def test_lines_of_a_step_are_merged_and_other_metrics_dropped() -> None:
    lines = [
        {"step": 1, "time": 5.0, "reward/mean": 0.1, "kl/reference": 0.3},
        {"step": 0, "val/reward/right": 0.02},
        {"step": 1, "time": 6.0, "seconds/step": 4.0},
    ]
    assert select_rows(lines, ["reward/mean", "val/reward/right"]) == [
        {"step": 0, "val/reward/right": 0.02},
        {"step": 1, "reward/mean": 0.1, "seconds/step": 4.0},
    ]


def test_runs_without_a_record_are_left_in_an_order_that_their_needs_allow(tmp_path: Path) -> None:
    runs = [(recipe.name, side, seed) for recipe, side, seed in missing_runs(tmp_path, list(RECIPES))]
    with_peer = [name for name, recipe in RECIPES.items() if recipe.peer]
    assert len(runs) == len(set(runs)) == len(RECIPES) * 3 + len(with_peer)
    assert {name for name, side, _ in runs if side == PEER} == {*with_peer}
    for name, recipe in RECIPES.items():
        for needed in recipe.needs.values():
            assert runs.index((needed, OURS, 1)) < min(runs.index((name, side, 1)) for side in (OURS, PEER))
    write_record(tmp_path, record(OURS, 1, 0.5))
    left = [(side, seed) for _, side, seed in missing_runs(tmp_path, ["grpo"])]
    assert left == [(PEER, 1), (OURS, 2), (OURS, 3)]
    # The record states 0.25 cores of others.
    for most, expected in ((0.2, [(OURS, 1), *left]), (0.3, left)):
        assert sorted((side, seed) for _, side, seed in missing_runs(tmp_path, ["grpo"], most)) == sorted(
            expected
        )


def test_pages_state_means_ranges_and_seconds() -> None:
    recipe = RECIPES["grpo"]
    ours = [record(OURS, seed, last) for seed, last in ((1, 0.5), (2, 0.6), (3, 0.7))]
    pages = render_pages([(recipe, ours, [record(PEER, 1, 0.4)])])
    row = next(line for line in pages["README.md"].splitlines() if line.startswith("| [GRPO"))
    assert row.split(" | ")[2:] == [
        "0.020 (0.020 to 0.020)",
        "0.600 (0.500 to 0.700)",
        "0.400",
        "6.0",
        "6.0 |",
    ]
    page = pages["grpo.md"]
    assert "| kubealign | 2 | 0.020 | 0.600 | 6.0 s | 1.5 min | 2026-01-02 03:04 | 0.25 |" in page
    assert "| TRL 1.16 | 1 | 0.020 | 0.400 |" in page
    for command in (
        "run kubealign 1",
        "run trl 1",
        "make results RESULTS=grpo",
        "kubealign plot kubealign=docs/",
    ):
        assert command in page


def test_recipe_without_a_run_of_the_peer_has_a_page() -> None:
    pages = render_pages([(RECIPES["grpo"], [record(OURS, 1, 0.5)], [])])
    assert "| 0.500 | - | 6.0 | - |" in pages["README.md"]
    assert not [
        each for each in plot_arguments((RECIPES["grpo"], [record(OURS, 1, 0.5)], [])) if "TRL" in each
    ]


def test_recipe_without_a_peer_has_a_page_that_names_none() -> None:
    recipe = RECIPES["tool-calls"]
    row = {"step": 0, "val/reward/right": 0.1, "seconds/step": 6.0, "rollout/turns": 2.0}
    run = RunRecord("tool-calls", OURS, 1, "run it", "2026-01-02 03:04", 9.0, 0.1, MACHINE, [row])
    pages = render_pages([(recipe, [run], [])])
    assert "TRL" not in pages["tool-calls.md"]
    assert "(../../examples/smollm2/recipes/tool-calls.yaml).\n" in pages["tool-calls.md"]
    assert "| 0.100 | 0.100 | - | 6.0 | - |" in pages["README.md"]


def test_published_pages_state_the_records() -> None:
    measured = read_measured(PAGES)
    for name, text in render_pages(measured).items():
        assert (PAGES / name).read_text() == text, (
            f"{name} is stale: python -m tests.bench.recipes --pages-only"
        )
    for recipe, _, _ in measured:
        assert (PAGES / f"{recipe.name}.svg").is_file()


@pytest.mark.parametrize("path", sorted((PAGES / "runs").rglob("*.json")), ids=lambda path: path.stem)
def test_published_records_are_whole(path: Path) -> None:
    recipe = RECIPES[path.parent.name]
    (match,) = (
        each
        for side in (OURS, PEER)
        for each in read_records(PAGES, recipe.name, side)
        if record_path(PAGES, each.recipe, each.side, each.seed) == path
    )
    assert [row["step"] for row in match.log_history] == list(range(recipe.steps + 1))
    assert len(match.step_seconds) == recipe.steps
    for measure in recipe.measures:
        assert match.last(measure.metric) == match.last(measure.metric)  # not NaN
    for word in ("/root", "/home", "/work"):
        assert word not in path.read_text()

"""The page's pure modules, run in the browser."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from support.browser import Dashboard, View
from support.memory_backend import MemoryBackend
from support.ruled_access import RuledAccess

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def view(browser: "Browser") -> Iterator[View]:
    """Share one view, since these tests change nothing."""
    with Dashboard(RuledAccess(MemoryBackend(), {})) as served, View(browser, served.url) as opened:
        opened.open("")
        yield opened


def js(view: View, module: str, expression: str, argument: Any = None) -> Any:
    """Evaluate an expression over the module `m` and the argument `a`."""
    script = f"async (a) => {{ const m = await import('/static/js/{module}.js'); return ({expression}); }}"
    return view.page.evaluate(script, argument)


def entry(number: int, step: int, fence: int = 1, **values: float | None) -> dict[str, Any]:
    return {"entry": f"{number}-0", "step": step, "fence": fence, "values": values}


ROWS = "(() => { const s = new m.StepSeries(); for (const part of a) s.add(part); return s.rows(); })()"


def test_a_step_repeated_under_a_higher_fence_invalidates_later_steps(view: View) -> None:
    first = [entry(1, 1, x=1.0), entry(2, 2, x=2.0), entry(3, 3, x=3.0), entry(4, 4, x=4.0)]
    again = [entry(5, 2, fence=2, x=20.0)]
    rows = js(view, "job/step_series", ROWS, [first, again])
    assert [(row["step"], row["fence"], row["values"]["x"]) for row in rows] == [(1, 1, 1.0), (2, 2, 20.0)]


def test_steps_are_independent_of_order_and_repetition(view: View) -> None:
    entries = [entry(n, n, x=float(n)) for n in range(1, 6)] + [
        entry(6, 4, fence=2, x=40.0),
        entry(7, 5, fence=2, x=50.0),
    ]
    result = js(view, "job/step_series", ROWS, [entries])
    backwards = js(view, "job/step_series", ROWS, [entries[::-1], entries[2:5], entries])
    assert backwards == result
    assert [row["values"]["x"] for row in result] == [1.0, 2.0, 3.0, 40.0, 50.0]


def test_a_separate_validation_joins_its_step(view: View) -> None:
    rows = js(view, "job/step_series", ROWS, [[entry(1, 1, x=1.0)], [entry(2, 1, **{"val/exact": 0.5})]])
    assert [row["values"] for row in rows] == [{"x": 1.0, "val/exact": 0.5}]


def test_a_higher_fence_without_rollback_invalidates_nothing(view: View) -> None:
    entries = [entry(1, 1, x=1.0), entry(2, 2, x=2.0), entry(3, 3, fence=2, x=3.0)]
    assert [row["fence"] for row in js(view, "job/step_series", ROWS, [entries])] == [1, 1, 2]


def test_the_time_axis(view: View) -> None:
    at = [{"entry": f"{1763740800000 + ms}-0", "values": {}} for ms in (0, 1_800_000, 3_600_000)]
    assert js(view, "job/step_series", "m.positions(a, 'time')", at) == [0, 0.5, 1]
    offsets = [{"entry": f"{n * 100}-0", "values": {"seconds/step": 1800.0}} for n in range(3)]
    assert js(view, "job/step_series", "m.positions(a, 'time')", offsets) == [0.5, 1, 1.5]


def test_smoothing_is_a_weighted_mean(view: View) -> None:
    # Weights 1, 1/2 and 1/4 from the newest one back, divided by their sum.
    smooth = js(view, "curves/smoothing", "m.smooth(a, 0.5)", [4.0, 2.0, 8.0])
    assert smooth == [4.0, (2 + 4 / 2) / 1.5, (8 + 2 / 2 + 4 / 4) / 1.75]
    assert js(view, "curves/smoothing", "m.smooth(a, 0)", [4.0, None, 8.0]) == [4.0, None, 8.0]
    assert js(view, "curves/smoothing", "m.smooth(a, 0.9)", [3.0, None, 3.0]) == [3.0, None, 3.0]


def test_a_thinned_curve_keeps_its_spikes_and_ends(view: View) -> None:
    values = [0.0] * 10_000
    values[4321], values[8765] = 5.0, -3.0
    thinned = js(view, "curves/smoothing", "m.thin(a, 400)", values)
    assert len(thinned) <= 402
    assert {0, 4321, 8765, 9999} <= set(thinned)
    assert thinned == sorted(thinned)


def test_the_colour_scale_is_robust_to_an_outlier(view: View) -> None:
    values = [0.01 * n for n in range(1, 100)] + [1000.0]
    of = (
        "(() => { const s = m.scale(a, true); return [s.end, s.of(s.end), s.of(-s.end / 2), s.of(null)]; })()"
    )
    end, strongest, half, none = js(view, "samples/token_colours", of, values)
    assert end < 2
    assert strongest == {"tone": "high", "strength": 1}
    assert half == {"tone": "low", "strength": 0.5}
    assert none is None


def test_the_url_round_trips_the_state(view: View) -> None:
    state = {
        "view": "job",
        "namespace": "team a",
        "name": "run/1?#&",
        "tab": "samples",
        "step": 0,
        "versus": 12,
        "sample": "7-0",
        "overlay": "b/c",
        "axis": "time",
    }
    assert js(view, "core/url_state", "m.parse(m.format(a))", state) == state
    listed = js(view, "core/url_state", "m.parse('#/?phase=Failed&phase=Running&sort=bad&search=%26a')")
    assert (listed["phases"], listed["sort"], listed["search"]) == (["Failed", "Running"], "-created", "&a")
    assert js(view, "core/url_state", "m.parse('#/jobs/%E0%A4%A/x').name") == "x"


def test_yaml_round_trips(view: View) -> None:
    import yaml

    document = {
        "name": "true",
        "on": "1.5",
        "empty": {},
        "none": None,
        "list": [{"a": 1, "b": [1, "x: y", []]}, "- dash", [2, 3]],
        "code": "def f():\n    return 'a'\n\n  # end",
        "odd": "tab\there\r\nand \u2028",
        "number": 1e-7,
        "yes": False,
    }
    assert yaml.safe_load(js(view, "core/yaml", "m.toYaml(a)", document)) == document


def test_every_metric_has_one_panel(view: View) -> None:
    names = [
        "reward/mean",
        "reward/a/mean",
        "reward/std",
        "kl/reference",
        "seconds/train",
        "seconds/train/policy",
        "seconds/score/reference",
        "seconds/validation",
        "seconds/wait_groups",
        "seconds/step",
        "new/x",
        "new/y",
    ]
    panels = js(view, "curves/metric_panels", "m.panelsFor(new Set(a))", names)
    shown = [name for panel in panels for name in panel["names"]]
    assert sorted(shown) == sorted(set(names) - {"seconds/step"})
    assert next(panel for panel in panels if panel["id"] == "reward")["names"] == [
        "reward/mean",
        "reward/a/mean",
    ]
    # Neither the parts of a phase nor waits that span several phases are stacked upon them.
    assert next(panel for panel in panels if panel["id"] == "phases")["names"] == ["seconds/train"]
    assert next(panel for panel in panels if panel["title"] == "new")["names"] == ["new/x", "new/y"]


def test_validation_metrics_are_grouped_by_set_and_bounds_have_no_curve(view: View) -> None:
    names = ["val/exact", "val/exact/ci_low", "val/exact/ci_high", "val/exact/pass@4", "val/reward/style",
             "val/hard/exact", "val/hard/exact/ci_low", "val/hard/exact/ci_high", "val/easy/exact",
             "val/exact/ci_low/x", "val/exact/ci_high/x"]  # fmt: skip
    panels = js(view, "curves/metric_panels", "m.panelsFor(new Set(a))", names)
    assert {panel["title"]: panel["names"] for panel in panels} == {
        "Validation": ["val/exact", "val/reward/style"],
        "Validation: easy": ["val/easy/exact"],
        "Validation: exact": ["val/exact/pass@4"],
        "Validation: hard": ["val/hard/exact"],
    }
    label = js(view, "curves/metric_panels", "m.label('val/hard/exact/pass@4', a)", panels[3])
    assert label == "exact pass@4"


def test_a_metric_has_its_confidence_interval(view: View) -> None:
    values = {
        "val/exact/ci_low": 0.4,
        "val/exact/ci_high": 0.6,
        "val/exact/ci_low/easy": 0.7,
        "val/exact/ci_high/easy": 0.9,
        "val/exact/pass@4/ci_low": 0.8,
        "val/exact/pass@4/ci_high": None,
    }
    names = ["val/exact", "val/exact/easy", "val/exact/pass@4", "val/other"]
    bounds = js(view, "curves/intervals", "a[0].map((name) => m.interval(name, a[1]))", [names, values])
    assert bounds == [[0.4, 0.6], [0.7, 0.9], None, None]
    rows = [{"step": 5, "values": {"val/exact": 0.5, **values}}, {"step": 10, "values": {"val/exact": 0.7}}]
    look = {"range": None, "smoothing": 0.6, "log": False, "colours": ["red"]}
    panel = {"names": ["val/exact"], "raw": True}
    (line,) = js(view, "curves/traces", "m.lines(a[0], a[1], [5, 10], a[2])", [panel, rows, look])
    assert line["error_y"]["array"] == pytest.approx([0.1, 0])
    assert line["error_y"]["arrayminus"] == pytest.approx([0.1, 0])


def test_validation_metrics_side_by_side(view: View) -> None:
    left = {
        "val/exact": 0.2,
        "val/exact/ci_low": 0.1,
        "val/exact/ci_high": 0.3,
        "val/hard/exact": 0.5,
        "kl": 1.0,
    }
    right = {"val/exact": 0.6, "val/exact/ci_low": 0.31, "val/exact/ci_high": 0.7, "val/loss": 2.0}
    groups = js(view, "comparison/metric_rows", "m.metricGroups(...a)", [left, right])
    assert [(group["group"], [row["name"] for row in group["rows"]]) for group in groups] == [
        ("", ["val/exact", "val/loss"]),
        ("hard", ["val/hard/exact"]),
    ]
    exact, loss = groups[0]["rows"]
    assert (exact["difference"], exact["verdict"]) == (pytest.approx(0.4), "apart")
    assert (loss["left"]["value"], loss["difference"], loss["verdict"]) == (None, None, "")
    touching = right | {"val/exact/ci_low": 0.3}
    groups = js(view, "comparison/metric_rows", "m.metricGroups(...a)", [left, touching])
    assert groups[0]["rows"][0]["verdict"] == "overlap"


def test_the_steps_to_compare(view: View) -> None:
    def choose(*sides: object) -> list[int | None]:
        steps: list[int | None] = js(view, "comparison/metric_rows", "m.stepsToCompare(...a)", list(sides))
        return steps

    assert choose([0, 10, 20], [0, 10, 20], True) == [0, 20]
    assert choose([0, 10], [5], False) == [10, 5]
    assert choose([], [5], False) == [None, 5]


def test_the_url_of_a_comparison(view: View) -> None:
    state = {"view": "compare", "left": "team/a", "leftStep": 0, "right": "b/c", "rightStep": 20, "set": "",
             "score": "right answer", "show": "left", "sort": "row", "page": 3}  # fmt: skip
    assert js(view, "core/url_state", "m.parse(m.format(a))", state) == state
    odd = js(view, "core/url_state", "m.parse('#/compare?show=best&sort=x&page=0&leftStep=-1')")
    assert (odd["show"], odd["sort"], odd["page"], odd["leftStep"], odd["set"]) == (
        "all",
        "difference",
        1,
        None,
        None,
    )


def test_a_curve_is_summarised(view: View) -> None:
    words = js(view, "curves/curve_summary", "m.summary('KL', [1, 2, 3], [0.1, 0.5, 0.25])")
    assert words == "KL: now 0.250 at step 3; 0.100 at step 1; lowest 0.100 (step 1), highest 0.500 (step 2)"
    assert "no values" in js(view, "curves/curve_summary", "m.summary('KL', [1], [null])")


def test_numbers_times_and_sizes_are_short(view: View) -> None:
    numbers = [0, 1.0, 0.03456, 123.456, 12345.6, 1234567.0, 0.00001234, -2.5, None]
    shown = js(view, "core/format", "a.map(m.number)", numbers)
    assert shown == ["0", "1", "0.0346", "123.5", "12346", "1.23e6", "1.23e−5", "−2.50", "–"]
    spans = js(view, "core/format", "a.map(m.duration)", [0.4, 42, 185, 7800, 97200])
    assert spans == ["0.400 s", "42 s", "3 min 5 s", "2 h 10 min", "1 d 3 h"]
    assert js(view, "core/format", "a.map(m.bytes)", [12, 2048, 2.6e9]) == ["12 B", "2.0 KiB", "2.4 GiB"]


def test_parsing_of_log_lines(view: View) -> None:
    read = js(
        view,
        "job/log_line",
        "a.map(m.readLine)",
        ['{"level": "INFO", "message": "step", "loss": 0.5}', "[1]", "plain"],
    )
    assert (read[0]["level"], read[0]["text"], read[0]["rest"]) == ("info", "step", "loss=0.5")
    assert [line["text"] for line in read[1:]] == ["[1]", "plain"]


def test_the_remaining_time_uses_the_last_steps(view: View) -> None:
    job = {"status": {"phase": "Running", "maxSteps": 100}}
    rows = [{"step": n, "values": {"seconds/step": 1000.0 if n < 20 else 3.0}} for n in range(1, 41)]
    result = js(view, "job/job_progress", "m.progress(a[0], a[1])", [job, rows])
    assert (result["step"], result["share"], result["left"]) == (40, 0.4, 180)
    spec = {"maxSteps": 80, "algorithm": {"sft": {"maxEpochs": None}}}
    waiting = {"status": {"phase": "Running"}, "spec": spec}
    assert js(view, "job/job_progress", "m.progress(a[0], a[1]).most", [waiting, rows]) == 80
    # The number of rows decides, and the driver has not reported yet.
    spec["algorithm"]["sft"]["maxEpochs"] = 2
    result = js(view, "job/job_progress", "m.progress(a[0], a[1])", [waiting, rows])
    assert (result["most"], result["share"], result["left"]) == (None, None, None)
    suspended = {"status": {"phase": "Suspended", "maxSteps": 100}}
    assert js(view, "job/job_progress", "m.progress(a[0], a[1]).left", [suspended, rows]) is None

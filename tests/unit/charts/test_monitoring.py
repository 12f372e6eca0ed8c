"""Metrics in the chart's alerts and Grafana dashboard exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from kubealign_dashboard.job_metrics.exporter import PAGE_JOBS, REDIS_UP
from kubealign_dashboard.job_metrics.families import FAMILIES, STEP_METRICS
from kubealign_dashboard.web.prometheus import DashboardMetrics
from kubealign_operator.controller.metrics import OperatorMetrics

ROOT = Path(__file__).parents[3]
FILES = ROOT / "charts" / "kubealign" / "files"
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
ALERTS: dict[str, Any] = yaml.safe_load((FILES / "alerts.yaml").read_text(encoding="utf-8"))
DASHBOARD: dict[str, Any] = json.loads((FILES / "grafana-dashboard.json").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]

#: Keywords of the query language.
WORDS = {"absent", "by", "delta", "histogram_quantile", "increase", "label_values", "le", "max", "or"}
WORDS |= {"rate", "sum", "time"}
#: Labels that a query of the board takes values of.
QUERIED_LABELS = {"namespace", "job_name"}


class Hub:
    """Fake of the state that the dashboard's metrics read."""

    streams = 0
    feeds = 0


def exported() -> set[str]:
    """Return the names of all metrics that operator and dashboard export."""
    registries: list[CollectorRegistry] = [
        OperatorMetrics()._registry,
        DashboardMetrics(Hub())._registry,  # type: ignore[arg-type]
    ]
    names = {PAGE_JOBS, REDIS_UP, *(family.name for family in FAMILIES)}
    for registry in registries:
        for collector in list(registry._collector_to_names):
            names |= set(registry._collector_to_names[collector])
    return names


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in RULES)
    yield from (target["expr"] for panel in PANELS for target in panel.get("targets", ()))
    yield from (
        variable["query"]["query"]
        for variable in DASHBOARD["templating"]["list"]
        if variable["type"] == "query"
    )


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_is_exported(expression: str) -> None:
    bare = re.sub(r'"[^"]*"|\[[^]]*\]', "", expression)
    names = set(re.findall(r"\bkubealign_\w+", bare))
    assert names and names <= exported()
    labels = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", bare))
    grouped = {name.strip() for group in re.findall(r"by \(([^)]*)\)", bare) for name in group.split(",")}
    others = set(re.findall(r"[a-zA-Z_]\w*", bare)) - names - labels - grouped
    assert others <= WORDS | QUERIED_LABELS
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)


def test_every_family_is_documented_with_the_metric_that_it_shows() -> None:
    """docs/metrics.md has a row for each family, and describes each metric of a step in its other tables."""
    _, _, section = PAGE.partition("## In Prometheus")
    rows = dict(re.findall(r"^\| `(kubealign_job_\w+)[^|]*\| ([^|]*) \|", section, re.MULTILINE))
    assert set(rows) == {family.name for family in FAMILIES} | {PAGE_JOBS, REDIS_UP}
    explained = set(re.findall(r"`([a-z_]+/[a-zA-Z_/]+|tokens_per_second)`", PAGE.replace(section, "")))
    for metric, (family, _) in STEP_METRICS.items():
        assert metric in explained, metric
        assert f"`{metric}`" in rows[family.name], metric
    for family in FAMILIES:
        described = re.search(rf"`{family.name}(?:{{(\w+)}})?`", section)
        assert described is not None and (described[1] or "") == family.label


def test_alerts_have_summary_and_description() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names) > 12
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert all(text.endswith(".") for text in rule["annotations"].values())


def test_panels_do_not_overlap_and_have_targets() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        position = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert position["x"] + position["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["targets"] and panel["datasource"]["uid"] == "${datasource}"
            assert panel["fieldConfig"]["defaults"]["unit"]

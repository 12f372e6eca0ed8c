"""Every alert of the chart fires under its condition, and not without it, in Prometheus' own evaluation."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.doc_blocks import blocks
from support.prometheus_programs import PrometheusPrograms

ROOT = Path(__file__).parents[3]
RULES = ROOT / "charts" / "kubealign" / "files" / "alerts.yaml"
CASES = Path(__file__).parent / "alert_cases.yaml"


def promtool(prometheus: PrometheusPrograms, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(prometheus.promtool), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def alerts() -> list[str]:
    document = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [rule["alert"] for group in document["groups"] for rule in group["rules"]]


def cases() -> dict[str, list[dict[str, Any]]]:
    """Return the cases of each alert."""
    document: dict[str, list[dict[str, Any]]] = yaml.safe_load(CASES.read_text(encoding="utf-8"))
    return document


def unit_test(alert: str, case: dict[str, Any]) -> dict[str, Any]:
    """Return a test of promtool: the alert's series at each time of the case.

    `ALERTS` is Prometheus' own series of the pending and firing alerts.
    """
    return {
        "interval": case.get("interval", "1m"),
        "input_series": [{"series": series, "values": values} for series, values in case["series"].items()],
        "promql_expr_test": [
            {
                "expr": f'ALERTS{{alertname="{alert}"}}',
                "eval_time": moment,
                "exp_samples": [
                    {
                        "labels": "ALERTS{"
                        + ", ".join(
                            f'{name}="{value}"'
                            for name, value in {"alertname": alert, "alertstate": state, **labels}.items()
                        )
                        + "}",
                        "value": 1,
                    }
                    for labels in [{"severity": case["severity"], **case.get("labels", {})}]
                    if state != "inactive"
                ],
            }
            for moment, state in case["states"].items()
        ],
    }


def test_the_rules_are_valid(prometheus: PrometheusPrograms) -> None:
    done = promtool(prometheus, "check", "rules", "--lint-fatal", RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(alerts())} rules found" in done.stdout


def test_the_scrape_configuration_on_the_page_is_valid(
    prometheus: PrometheusPrograms, tmp_path: Path
) -> None:
    [block] = [
        block
        for block in blocks(ROOT / "docs" / "operations.md", "yaml")
        if block.text.startswith("scrape_configs:")
    ]
    file = tmp_path / "prometheus.yaml"
    file.write_text(block.text)
    done = promtool(prometheus, "check", "config", "--syntax-only", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    assert set(cases()) == set(alerts())
    for alert, states in (
        (alert, [set(case["states"].values()) for case in of_alert]) for alert, of_alert in cases().items()
    ):
        assert any("firing" in seen for seen in states), alert
        assert any(seen == {"inactive"} for seen in states), alert


@pytest.mark.parametrize("alert", sorted(cases()))
def test_the_alert_has_the_expected_states(
    prometheus: PrometheusPrograms, tmp_path: Path, alert: str
) -> None:
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [unit_test(alert, case) for case in cases()[alert]],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(document))
    done = promtool(prometheus, "test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr

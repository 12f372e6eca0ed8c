"""Objects of the chart for Prometheus and Grafana, which are off by default."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.support.helm import CHART, RELEASE, Helm, HelmFailed, of_kind
from cluster.support.programs import find

pytestmark = pytest.mark.skipif(find("helm") is None, reason="helm is not built: `make cluster-tools`")

ALL = {"prometheusRule": {"enabled": True}, "grafana": {"dashboards": {"enabled": True}}}


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    return Helm(tmp_path / "helm")


def groups(objects: list[dict[str, Any]]) -> dict[str, Any]:
    [rule] = of_kind(objects, "PrometheusRule")
    return {group["name"]: group["rules"] for group in rule["spec"]["groups"]}


def dashboards(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        config_map for config_map in of_kind(objects, "ConfigMap") if "kubealign.json" in config_map["data"]
    ]


def test_nothing_is_made_unless_it_is_asked_for(helm: Helm) -> None:
    objects = helm.render({})
    assert not of_kind(objects, "PrometheusRule")
    assert not dashboards(objects)


def test_rules_and_dashboard_are_the_files(helm: Helm) -> None:
    objects = helm.render(ALL | {"dashboard": {"enabled": True}})
    written = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    assert groups(objects) == {group["name"]: group["rules"] for group in written["groups"]}
    [config_map] = dashboards(objects)
    expected = json.loads((CHART / "files" / "grafana-dashboard.json").read_text())
    assert json.loads(config_map["data"]["kubealign.json"]) == expected
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_disabled_components_have_no_alerts(helm: Helm) -> None:
    off = {"dashboard": {"enabled": False}, "redis": {"embedded": {"enabled": False}}}
    assert set(groups(helm.render(ALL | off))) == {"kubealign-operator", "kubealign-jobs"}


def test_labels_are_those_that_prometheus_and_grafana_look_for(helm: Helm) -> None:
    objects = helm.render(
        {
            "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
            "grafana": {
                "dashboards": {
                    "enabled": True,
                    "labels": {"dashboards": "yes"},
                    "annotations": {"grafana_folder": "align"},
                }
            },
        }
    )
    [rule] = of_kind(objects, "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    [config_map] = dashboards(objects)
    assert config_map["metadata"]["labels"]["dashboards"] == "yes"
    assert config_map["metadata"]["annotations"] == {"grafana_folder": "align"}
    assert config_map["metadata"]["name"] == f"{RELEASE}-grafana"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"prometheusRule": {"enable": True}}, "enable"),
        ({"prometheusRule": {"labels": {"release": 1}}}, "release"),
        ({"grafana": {"enabled": True}}, "enabled"),
        ({"grafana": {"dashboards": {"label": "x"}}}, "label"),
    ],
)
def test_values_that_mean_nothing_are_refused(helm: Helm, values: dict[str, Any], named: str) -> None:
    with pytest.raises(HelmFailed, match=named):
        helm.render(values)

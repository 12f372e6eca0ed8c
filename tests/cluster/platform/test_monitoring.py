"""Objects of the chart for Prometheus and Grafana, which are off by default."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic.alias_generators import to_camel

from cluster.support.helm import CHART, NAMESPACE, RELEASE, Helm, HelmFailed, of_kind
from cluster.support.programs import find
from kubealign.spec.job import GROUP, VERSION
from kubealign.spec.status import AlignmentJobStatus, JobPhase

pytestmark = pytest.mark.skipif(find("helm") is None, reason="helm is not built: `make cluster-tools`")

ALL = {"prometheusRule": {"enabled": True}, "grafana": {"dashboards": {"enabled": True}}}
SCRAPED = {"serviceMonitor": {"enabled": True}}


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
    assert not of_kind(objects, "ServiceMonitor")
    assert not dashboards(objects)
    assert not any("scraper" in manifest["metadata"]["name"] for manifest in objects)
    assert not any("state-metrics" in manifest["metadata"]["name"] for manifest in objects)


def test_rules_and_dashboard_are_the_files(helm: Helm) -> None:
    objects = helm.render(ALL | {"dashboard": {"enabled": True}})
    written = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    assert groups(objects) == {group["name"]: group["rules"] for group in written["groups"]}
    [config_map] = dashboards(objects)
    expected = json.loads((CHART / "files" / "grafana-dashboard.json").read_text())
    assert json.loads(config_map["data"]["kubealign.json"]) == expected
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_disabled_components_have_no_alerts(helm: Helm) -> None:
    no_dashboard = {"dashboard": {"enabled": False}}
    no_redis = {"redis": {"embedded": {"enabled": False}}}
    assert set(groups(helm.render(ALL | no_dashboard | no_redis))) == {"kubealign-operator"}
    assert set(groups(helm.render(ALL | no_dashboard))) == {"kubealign-operator", "kubealign-redis"}
    assert set(groups(helm.render(ALL | no_redis))) == {"kubealign-operator", "kubealign-dashboard"}


def endpoints(objects: list[dict[str, Any]], component: str) -> dict[str, dict[str, Any]]:
    """Return the endpoints of a component's ServiceMonitor by path."""
    [monitor] = [
        manifest
        for manifest in of_kind(objects, "ServiceMonitor")
        if manifest["metadata"]["labels"]["app.kubernetes.io/component"] == component
    ]
    return {endpoint.get("path", "/metrics"): endpoint for endpoint in monitor["spec"]["endpoints"]}


def test_the_page_of_jobs_is_scraped_with_a_token_that_only_the_dashboard_gets(helm: Helm) -> None:
    objects = helm.render(SCRAPED)
    [pages, jobs] = [endpoints(objects, "dashboard")[path] for path in ("/metrics", "/metrics/jobs")]
    assert "authorization" not in pages
    # The label namespace of a series is the job's, not the dashboard's.
    assert jobs["honorLabels"] and endpoints(objects, "operator")["/metrics"]["honorLabels"]
    [secret] = [
        manifest
        for manifest in of_kind(objects, "Secret")
        if manifest.get("type") == "kubernetes.io/service-account-token"
    ]
    assert jobs["authorization"]["credentials"] == {"name": secret["metadata"]["name"], "key": "token"}
    account = secret["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    [role] = [role for role in of_kind(objects, "ClusterRole") if role["metadata"]["name"] == account]
    assert role["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    # A token is sent only to the holder of the dashboard's own certificate.
    assert jobs["scheme"] == "https"
    assert jobs["tlsConfig"] == {
        "ca": {"secret": {"name": f"{RELEASE}-dashboard-tls", "key": "ca.crt"}},
        "serverName": f"{RELEASE}-dashboard.{NAMESPACE}.svc",
    }


def test_scraping_of_jobs_takes_a_secret_interval_and_trust_of_ones_own(helm: Helm) -> None:
    own = {"existingSecret": "mine", "interval": "2m", "tlsConfig": {"insecureSkipVerify": True}}
    objects = helm.render({"serviceMonitor": {"enabled": True, "jobs": own}})
    jobs = endpoints(objects, "dashboard")["/metrics/jobs"]
    assert jobs["authorization"]["credentials"] == {"name": "mine", "key": "token"}
    assert (jobs["interval"], jobs["tlsConfig"]) == ("2m", {"insecureSkipVerify": True})
    assert not any("scraper" in manifest["metadata"]["name"] for manifest in objects)
    plain = endpoints(helm.render(SCRAPED | {"dashboard": {"tls": {"enabled": False}}}), "dashboard")
    assert "tlsConfig" not in plain["/metrics/jobs"] and plain["/metrics/jobs"]["port"] == "http"


def test_the_configuration_of_kube_state_metrics_is_the_file(helm: Helm) -> None:
    objects = helm.render({"kubeStateMetrics": {"enabled": True, "labels": {"team": "ml"}}})
    [config_map] = [
        item
        for item in of_kind(objects, "ConfigMap")
        if "config.yaml" in item["data"] and item["metadata"]["name"] == f"{RELEASE}-kube-state-metrics"
    ]
    assert config_map["metadata"]["labels"]["team"] == "ml"
    written = yaml.safe_load((CHART / "files" / "kube-state-metrics.yaml").read_text())
    assert yaml.safe_load(config_map["data"]["config.yaml"]) == written
    [resource] = written["spec"]["resources"]
    kind = resource["groupVersionKind"]
    assert (kind["group"], kind["version"], kind["kind"]) == (GROUP, VERSION, "AlignmentJob")
    # Every path leads to a field that the operator writes.
    fields = {to_camel(name) for name in AlignmentJobStatus.model_fields}
    for metric in resource["metrics"]:
        [source] = [value for key, value in metric["each"].items() if key != "type"]
        assert source["path"][0] == "metadata" or source["path"][1] in fields, metric["name"]
    [phases] = [
        metric["each"]["stateSet"]["list"]
        for metric in resource["metrics"]
        if metric["name"] == "status_phase"
    ]
    assert phases == [phase.value for phase in JobPhase]


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
        ({"serviceMonitor": {"jobs": {"interval": "often"}}}, "interval"),
        ({"serviceMonitor": {"jobs": {"secret": "x"}}}, "secret"),
        ({"kubeStateMetrics": {"label": {}}}, "label"),
        ({"grafana": {"dashboards": {"label": "x"}}}, "label"),
    ],
)
def test_values_that_mean_nothing_are_refused(helm: Helm, values: dict[str, Any], named: str) -> None:
    with pytest.raises(HelmFailed, match=named):
        helm.render(values)

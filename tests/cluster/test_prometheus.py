"""A real Prometheus scrapes operator and dashboard by the chart's ServiceMonitors, and its alerts fire."""

import base64
import json
import re
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from kubernetes import client

from cluster.support.accounts import account, kubeconfig
from cluster.support.behaviour import Exit
from cluster.support.cluster_jobs import make_claims, rloo, sft, until_told
from cluster.support.control_plane import ControlPlane
from cluster.support.dashboard_process import DashboardProcess, charts_account
from cluster.support.dashboard_redis import DashboardRedis
from cluster.support.door import define
from cluster.support.helm import CHART, NAMESPACE, RELEASE, Helm, Json, of_kind
from cluster.support.operator_process import OperatorProcess
from cluster.support.programs import find
from cluster.support.prometheus_process import PrometheusProcess, ScrapeTarget
from cluster.support.simulated_kubelet import SimulatedKubelet
from cluster.support.team import Team
from kubealign_dashboard.job_metrics.families import STEP_METRICS
from support.free_address import free_port
from support.prometheus_programs import PrometheusMissing, PrometheusPrograms, prometheus_programs

pytestmark = pytest.mark.skipif(find("helm") is None, reason="helm is not built: `make cluster-tools`")

RULES: Json = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
BOARD: Json = json.loads((CHART / "files" / "grafana-dashboard.json").read_text())
VALUES = {"serviceMonitor": {"enabled": True}}
#: Alerts on what a job stores: the test stores it.
JOB_ALERTS = {
    rule["alert"] for group in RULES["groups"] if group["name"] == "kubealign-jobs" for rule in group["rules"]
}
#: Metrics without a series unless something fails. Their HELP and TYPE lines are on the page.
ONLY_ON_FAILURE = {"kubealign_operator_reconcile_errors_total"}
_SCRAPE_SECONDS = 90.0
_POLL_SECONDS = 0.5
_SELECTOR = re.compile(r"(kubealign_\w+)(?:\{([^}]*)\})?")


@dataclass(frozen=True)
class Site:
    """Operator, dashboard, Redis and Prometheus, with a running and a failed job."""

    team: Team
    operator: OperatorProcess
    dashboard: DashboardProcess
    #: Address of the dashboard with TLS.
    dashboard_address: str
    redis: DashboardRedis
    prometheus: PrometheusProcess
    scraper_token: str


@pytest.fixture(scope="module")
def programs() -> PrometheusPrograms:
    try:
        return prometheus_programs()
    except PrometheusMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def site(
    programs: PrometheusPrograms,
    control_plane: ControlPlane,
    known: None,
    simulated: SimulatedKubelet,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("prometheus")
    objects = Helm(folder / "helm").render(VALUES)
    define(control_plane)
    with ExitStack() as stack:
        mark = uuid.uuid4().hex[:8]
        platform, team_name = f"platform-{mark}", f"team-{mark}"
        for name in (platform, team_name):
            control_plane.kubectl.create_namespace(name)
            stack.callback(control_plane.kubectl, "delete", "namespace", name, "--wait=false")
        make_claims(control_plane, team_name)
        team = Team(control_plane, team_name)
        redis = stack.enter_context(DashboardRedis(folder))
        operator = stack.enter_context(
            OperatorProcess(folder, control_plane.kubeconfig, team.namespace, redis=redis.config)
        )
        account_token = stack.enter_context(
            charts_account(control_plane, folder / "helm", platform, {"watchNamespaces": [team.namespace]})
        )
        tls = _chart_certificate(objects, folder)
        address, local = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        dashboard = DashboardProcess(
            folder,
            kubeconfig(control_plane, folder / "own.kubeconfig", account_token),
            NAMESPACES=team.namespace,
            LISTEN=address,
            LISTEN_LOCAL=local,
            TLS_CERT_FILE=tls / "tls.crt",
            TLS_KEY_FILE=tls / "tls.key",
            **redis.settings,
        )
        dashboard.url = f"http://{local}"
        stack.enter_context(dashboard)
        token = _scraper_token(stack, team, platform, objects)
        token_file = folder / "token"
        token_file.write_text(token)
        targets = _targets(objects, operator, address, token_file, tls / "ca.crt")
        prometheus = stack.enter_context(PrometheusProcess(folder / "server", programs, targets, _at_once()))
        yield Site(team, operator, dashboard, address, redis, prometheus, token)


def _chart_certificate(objects: Sequence[Json], folder: Path) -> Path:
    """Write the dashboard's certificate as the chart makes it."""
    [secret] = [
        item for item in of_kind(objects, "Secret") if item["metadata"]["name"] == f"{RELEASE}-dashboard-tls"
    ]
    tls = folder / "tls"
    tls.mkdir()
    for name, content in secret["data"].items():
        (tls / name).write_bytes(base64.b64decode(content))
    return tls


def _scraper_token(stack: ExitStack, team: Team, platform: str, objects: Sequence[Json]) -> str:
    """Create the chart's account for Prometheus in the namespace `platform`.

    Return the token that Kubernetes writes into its Secret."""
    rendered = [item for item in objects if item["metadata"]["name"] == f"{RELEASE}-dashboard-scraper"]
    own: list[Json] = json.loads(json.dumps(rendered).replace(f'"{NAMESPACE}"', f'"{platform}"'))
    assert {item["kind"] for item in own} == {"ServiceAccount", "Secret", "ClusterRole", "ClusterRoleBinding"}
    kubectl = team.control_plane.kubectl
    kubectl.apply(*own)
    for kind in ("clusterrole", "clusterrolebinding"):
        stack.callback(kubectl, "delete", kind, f"{RELEASE}-dashboard-scraper")
    core = client.CoreV1Api(team.control_plane.api)

    def token() -> str:
        secret: Any = core.read_namespaced_secret(f"{RELEASE}-dashboard-scraper", platform)
        return base64.b64decode((secret.data or {}).get("token", "")).decode()

    team.until(lambda: bool(token()), "the token of the scraper's account")
    return token()


def _targets(
    objects: Sequence[Json], operator: OperatorProcess, dashboard: str, token_file: Path, authority: Path
) -> list[ScrapeTarget]:
    targets = []
    for monitor in of_kind(objects, "ServiceMonitor"):
        component = monitor["metadata"]["labels"]["app.kubernetes.io/component"]
        address = f"127.0.0.1:{operator.metrics_port}" if component == "operator" else dashboard
        for endpoint in monitor["spec"]["endpoints"]:
            settings: Json = {}
            if "authorization" in endpoint:
                settings["authorization"] = {"credentials_file": str(token_file)}
            tls = endpoint.get("tlsConfig", {})
            if "ca" in tls:
                settings["tls_config"] = {"ca_file": str(authority), "server_name": tls["serverName"]}
            elif tls:
                settings["tls_config"] = {"insecure_skip_verify": tls["insecureSkipVerify"]}
            targets.append(ScrapeTarget(f"{component}-{len(targets)}", endpoint, address, settings))
    assert len(targets) == 3
    return targets


def _at_once() -> Json:
    """Return the chart's rules without their waiting times, which promtool's tests cover."""
    rules: Json = json.loads(json.dumps(RULES))
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    return rules


@pytest.fixture(scope="module")
def jobs(site: Site, simulated: SimulatedKubelet) -> None:
    """A running job with a bad last step and a restart, one with unreadable metrics, and a failed one."""
    simulated.behave = until_told
    team = site.team
    team.apply(rloo("bad"), sft("evil"), sft("failed"))
    for name in ("bad", "evil", "failed"):
        team.until_phase(name, "Running")
    # Exit code 78: a permanent failure.
    simulated.exit(team.namespace, "failed-driver-0", Exit(code=78, message="the data has no rows"))
    team.until_phase("failed", "Failed")
    simulated.exit(team.namespace, "bad-trainer-0-0", Exit(code=137, reason="OOMKilled"))
    team.until(lambda: bool(team.job("bad")["status"].get("attempts")), "the trainer to be restarted")
    values = dict.fromkeys(STEP_METRICS, 1.0)
    values |= {
        "kl/reference_sequence": 150.0,
        "rollout/logprob_gap_mean": 0.25,
        "refit/quarantined_workers": 2,
    }
    values |= {"reward/helpful/mean": 0.5, "val/accuracy": 0.75}
    redis, prefix = site.redis.client(), f"kubealign:{team.namespace}"
    # A step of the year 1970.
    redis.xadd(f"{prefix}:bad:metrics", {"step": 4, "fence": 1, "json": json.dumps(values)}, id="1000-0")
    redis.hset(f"{prefix}:bad:status", mapping={"step": 4, "max_steps": 10, "weight_version": 4})
    redis.set(f"{prefix}:evil:metrics", "of another type")


def expressions() -> Iterator[str]:
    for group in RULES["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    for panel in BOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def used_metrics() -> dict[str, set[str]]:
    """Return the metrics of all alerts and panels, with the labels by which they are selected and grouped."""
    used: dict[str, set[str]] = {}
    for expression in expressions():
        grouped = {
            label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")
        }
        for name, matchers in _SELECTOR.findall(expression):
            selected = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", matchers))
            used.setdefault(name, set()).update(selected | grouped)
    return used


def test_every_metric_and_label_of_alerts_and_board_is_scraped(site: Site, jobs: None) -> None:
    prometheus, used = site.prometheus, used_metrics()
    assert len(used) > 40

    def missing() -> set[str]:
        return used.keys() - prometheus.names() - ONLY_ON_FAILURE

    # A histogram of responses has no series before the first response.
    end = time.monotonic() + _SCRAPE_SECONDS
    while missing() and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
    assert not missing(), f"not scraped within {_SCRAPE_SECONDS:g} s; {prometheus.targets()}"
    assert prometheus.families() >= ONLY_ON_FAILURE
    for name, labels in used.items():
        if name not in ONLY_ON_FAILURE:
            present = set[str]().union(*prometheus.series(name))
            assert labels <= present, (name, labels - present)
    up = {labels["job"]: value for labels, value in prometheus.query("up")}
    assert set(up.values()) == {1.0} and len(up) == 3, prometheus.targets()


def test_series_have_the_namespace_of_the_job(site: Site, jobs: None) -> None:
    prometheus, namespace = site.prometheus, site.team.namespace

    def value(expression: str) -> float | None:
        return next((number for _, number in prometheus.query(expression)), None)

    one = f'namespace="{namespace}"'
    for expression, expected in (
        (f'kubealign_job_reward_source_mean{{{one}, job_name="bad", source="helpful"}}', 0.5),
        (f'kubealign_job_validation{{{one}, job_name="bad", metric="accuracy"}}', 0.75),
        (f'kubealign_job_step{{{one}, job_name="bad"}}', 4),
        (f'kubealign_job_info{{{one}, job_name="bad", algorithm="rloo"}}', 1),
        (f'kubealign_job_phase{{{one}, job_name="failed", phase="Failed"}}', 1),
        (f'kubealign_jobs{{{one}, phase="Running"}}', 2),
        (f'kubealign_jobs{{{one}, phase="Failed"}}', 1),
        (f'kubealign_operator_job_restarts_total{{{one}, cause="OutOfMemory"}}', 1),
        (f'kubealign_operator_jobs_finished_total{{{one}, phase="Failed", reason="PermanentFailure"}}', 1),
        (f"kubealign_operator_job_start_seconds_count{{{one}}}", 3),
        (f"kubealign_operator_job_queue_seconds_count{{{one}}}", 3),
    ):
        site.team.until(
            lambda expression=expression, expected=expected: value(expression) == expected,
            f"{expression} to be {expected}",
        )
    # The job that has stored what cannot be read keeps the series of its status.
    assert value(f'kubealign_job_phase{{{one}, job_name="evil", phase="Running"}}') == 1
    assert value(f'kubealign_job_step{{{one}, job_name="evil"}}') is None


def test_the_alerts_of_jobs_fire_and_name_the_job(site: Site, jobs: None) -> None:
    def firing() -> dict[str, Json]:
        return {
            alert["labels"]["alertname"]: alert
            for alert in site.prometheus.alerts()
            if alert["state"] == "firing" and alert["labels"].get("job_name") in (None, "bad")
        }

    site.team.until(lambda: firing().keys() >= JOB_ALERTS, "every alert of a job to fire", 90)
    for name, alert in firing().items():
        texts = " ".join(alert["annotations"].values())
        assert "<no value>" not in texts and "error" not in texts, texts
        if name in JOB_ALERTS - {"KubealignJobMetricsMissing"}:
            assert f"{site.team.namespace}/bad" in alert["annotations"]["summary"]
    assert "KubealignOperatorAbsent" not in firing()


def test_the_page_of_jobs_is_for_the_scrapers_account_alone(site: Site, jobs: None) -> None:
    control_plane, namespace = site.team.control_plane, site.team.namespace
    # A member of the team may list jobs, but not read the metrics of all teams.
    rules = [{"apiGroups": ["kubealign.dev"], "resources": ["alignmentjobs"], "verbs": ["get", "list"]}]
    member = account(control_plane, namespace, "member", rules)

    def get(token: str | None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.get(f"{site.dashboard.url}/metrics/jobs", headers=headers, timeout=20, trust_env=False)

    assert get(None).status_code == 401
    assert get("not-a-token").status_code == 401
    refused = get(member)
    assert refused.status_code == 403 and "nonResourceURLs" in refused.json()["detail"]
    assert "bad" in get(site.scraper_token).text
    # The pages that need no token name no job.
    for page in (site.dashboard.get("/metrics"), site.operator.page()):
        assert "kubealign_" in page
        assert not re.search(r'="(bad|evil|failed)"', page)
    # The scraper's token opens nothing else.
    with site.dashboard.client(site.scraper_token) as asking:
        assert asking.get(f"/namespaces/{namespace}/alignmentjobs/bad").status_code == 403


def test_promtool_finds_nothing_wrong_with_the_pages(
    site: Site, jobs: None, programs: PrometheusPrograms
) -> None:
    headers = {"Authorization": f"Bearer {site.scraper_token}"}
    job_page = httpx.get(f"{site.dashboard.url}/metrics/jobs", headers=headers, timeout=20, trust_env=False)
    for page in (site.operator.page(), site.dashboard.get("/metrics"), job_page.text):
        done = subprocess.run(
            [programs.promtool, "check", "metrics"],
            input=page,
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

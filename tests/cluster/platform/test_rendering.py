"""Objects that the chart renders from values, without a cluster."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.support.chart_values import EMPTY_USERS, VALUES
from cluster.support.helm import CHART, RELEASE, Helm, HelmFailed, YamlLoader, of_kind, pod_specs
from cluster.support.programs import find
from kubealign.access.redis_names import key_prefix
from kubealign.spec.loading.loader import parse_jobs
from kubealign_dashboard.cluster.settings import DashboardSettings, from_environment
from kubealign_operator.controller.config import OperatorConfig, load_config
from kubealign_services.scoring.sandbox_server.application import ServiceSettings
from kubealign_services.scoring.sandbox_server.main import make_parser, read_settings

pytestmark = pytest.mark.skipif(find("helm") is None, reason="helm is not built: `make cluster-tools`")

OPERATOR = f"{RELEASE}-operator"
DASHBOARD = f"{RELEASE}-dashboard"
SANDBOX = f"{RELEASE}-sandbox"
MANIFEST = CHART / "files" / "alignmentjobs.kubealign.dev.yaml"


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    return Helm(tmp_path / "helm")


def configuration(objects: list[dict[str, Any]], folder: Path) -> OperatorConfig:
    """Return the operator's configuration, parsed by the operator."""
    maps = of_kind(objects, "ConfigMap")
    [text] = [item["data"]["config.yaml"] for item in maps if item["metadata"]["name"].endswith("-operator")]
    file = folder / "config.yaml"
    file.write_text(text)
    return load_config(file)


@pytest.mark.parametrize("name", VALUES)
def test_helm_finds_nothing_wrong(helm: Helm, name: str) -> None:
    helm("lint", str(CHART), "--strict", "--quiet", "-f", str(helm.values(VALUES[name])))


@pytest.mark.parametrize("name", VALUES)
def test_the_operator_reads_its_file(helm: Helm, tmp_path: Path, name: str) -> None:
    config = configuration(helm.render(VALUES[name]), tmp_path)
    assert config.namespaces == VALUES[name].get("watchNamespaces", [])
    assert config.leader_election is not None
    if name == "no-redis":
        assert config.redis is None
    else:
        assert config.redis is not None
        assert config.redis.host == config.platform.redis_host
        assert config.redis.tls == config.platform.redis_tls
        assert config.redis.tls == (name not in ("plain-redis", "shared-redis"))


def test_profiles_and_the_collector_reach_the_operator(helm: Helm, tmp_path: Path) -> None:
    platform = configuration(helm.render(VALUES["everything"]), tmp_path).platform
    assert platform.profiles == {"rdma": {"spec": {"hostNetwork": True}}}
    assert platform.otlp_endpoint == "http://collector.observability.svc:4318"
    assert [peer.model_dump(by_alias=True, exclude_none=True) for peer in platform.otlp_peers] == [
        {"podSelector": {"matchLabels": {}}}
    ]
    without = configuration(helm.render({}), tmp_path).platform
    assert (without.profiles, without.otlp_endpoint) == ({}, "")


def test_manifests_without_generated_secrets_are_the_same_each_time(helm: Helm) -> None:
    """Argo CD renders without a cluster, and would replace generated secrets at each synchronisation."""

    def renderings(values: dict[str, Any]) -> set[str]:
        # Without the large definition, which is a plain file, a rendering takes a fraction of the time.
        file = helm.values({"crds": {"install": False}, **values})
        arguments = ("template", RELEASE, str(CHART), "-f", str(file))
        return {helm(*arguments) for _ in range(2)}

    named = {"redis": {"existingSecret": "redis-login"}, "dashboard": {"tls": {"existingSecret": "board"}}}
    assert len(renderings(named)) == 1
    for section in named:
        assert len(renderings({section: named[section]})) == 2, "the other secret is generated"


def test_what_the_administrator_sets_reaches_the_pods_of_jobs(helm: Helm, tmp_path: Path) -> None:
    platform = configuration(helm.render(VALUES["everything"]), tmp_path).platform
    assert (platform.run_as_user, platform.fs_group) == (1000, 2000)
    assert platform.credentials_lifetime_days == 30
    assert platform.pod_template["spec"] == {"imagePullSecrets": [{"name": "registry"}]}
    assert platform.default_resources == {"trainer": {"requests": {"cpu": "2", "memory": "4Gi"}}}


_USER_FIELDS = {"runAsUser", "runAsGroup", "fsGroup"}


def set_fields(value: Any) -> set[str]:
    """Return the names of all fields, at any depth, whose value is not null."""
    if isinstance(value, list):
        return {name for item in value for name in set_fields(item)}
    if not isinstance(value, dict):
        return set()
    own = {name for name, inner in value.items() if inner is not None}
    return own.union(*map(set_fields, value.values()))


def test_on_openshift_the_namespace_chooses_users_and_groups(helm: Helm, tmp_path: Path) -> None:
    for objects, expected in (
        (helm.render({}), _USER_FIELDS),
        (helm.render(VALUES["openshift"]), set()),
        (helm.render(EMPTY_USERS), set()),
    ):
        pods = list(pod_specs(objects).values())
        assert set_fields(pods) & _USER_FIELDS == expected
        platform = configuration(objects, tmp_path).platform
        assert (platform.run_as_user, platform.fs_group) == ((65532, 65532) if expected else (None, None))
        assert all(pod["securityContext"]["runAsNonRoot"] for pod in pods)


def test_dns_ports_reach_the_platform_and_the_jobs(helm: Helm, tmp_path: Path) -> None:
    for values, ports in (({}, [53]), (VALUES["openshift"], [53, 5353])):
        objects = helm.render(values)
        assert configuration(objects, tmp_path).platform.dns_ports == ports
        with_dns = 0
        for policy in of_kind(objects, "NetworkPolicy"):
            for rule in policy["spec"].get("egress", []):
                if any(port["protocol"] == "UDP" for port in rule["ports"]):
                    with_dns += 1
                    rendered = [(port["port"], port["protocol"]) for port in rule["ports"]]
                    assert rendered == [(port, protocol) for port in ports for protocol in ("UDP", "TCP")]
        assert with_dns == 2


def test_jobs_reach_redis_by_its_labels_or_by_its_addresses(helm: Helm, tmp_path: Path) -> None:
    objects = helm.render({})
    [peer] = configuration(objects, tmp_path).platform.platform().redis_peers or ()
    [redis] = of_kind(objects, "StatefulSet")
    labels = redis["spec"]["template"]["metadata"]["labels"]
    assert peer["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": redis["metadata"]["namespace"]
    }
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "redis"
    external = configuration(helm.render(VALUES["external-redis"]), tmp_path).platform.platform()
    assert external.redis_peers == ({"ipBlock": {"cidr": "10.2.0.0/16"}},)
    assert configuration(helm.render(VALUES["no-redis"]), tmp_path).platform.redis_peers == []
    everything = configuration(helm.render(VALUES["everything"]), tmp_path).platform
    assert everything.egress_except == ["10.0.0.0/28"]


def test_jobs_start_one_at_a_time_where_the_values_say_so(helm: Helm, tmp_path: Path) -> None:
    default = configuration(helm.render({}), tmp_path).platform
    assert (default.start_one_at_a_time, default.start_turn_seconds) == (False, 300)
    everything = configuration(helm.render(VALUES["everything"]), tmp_path).platform
    assert (everything.start_one_at_a_time, everything.start_turn_seconds) == (True, 600)


def test_what_an_external_redis_needs_is_mounted(helm: Helm, tmp_path: Path) -> None:
    objects = helm.render(VALUES["external-redis"])
    config = configuration(objects, tmp_path)
    assert config.redis is not None
    assert (config.redis.host, config.redis.port) == ("redis.example", 6380)
    assert not of_kind(objects, "StatefulSet")
    assert [secret["metadata"]["name"] for secret in of_kind(objects, "Secret")] == [f"{DASHBOARD}-tls"]
    spec = pod_specs(objects)[f"Deployment/{OPERATOR}"]
    mounted = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    secrets = {
        volume["name"]: volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume
    }
    assert secrets == {"redis": "redis-login", "redis-ca": "redis-ca"}
    assert str(config.redis.password_file) == f"{mounted['redis']}/password"
    assert str(config.redis.ca_file) == f"{mounted['redis-ca']}/ca.crt"


def test_a_cluster_with_an_id_has_its_own_names_in_redis(helm: Helm, tmp_path: Path) -> None:
    objects = helm.render(VALUES["shared-redis"])
    config = configuration(objects, tmp_path)
    assert config.redis is not None
    assert (config.platform.cluster_id, config.redis.user) == ("east", "operator-east")
    [container] = pod_specs(objects)[f"Deployment/{DASHBOARD}"]["containers"]
    settings = from_environment({item["name"]: item["value"] for item in container["env"]})
    assert (settings.cluster_id, settings.redis_user) == ("east", "dashboard-east")
    patterns = {}
    for cluster_id in ("", "east"):
        secrets = of_kind(helm.render({"clusterId": cluster_id}), "Secret")
        [acl] = [item["stringData"]["users.acl"] for item in secrets if "stringData" in item]
        [rules] = [line for line in acl.splitlines() if line.startswith("user dashboard")]
        patterns[cluster_id] = next(rule for rule in rules.split() if rule.startswith("~"))
    assert patterns == {cluster_id: f"~{key_prefix(cluster_id)}*" for cluster_id in patterns}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"operators": {}}, "operators"),
        ({"operator": {"replica": 2}}, "replica"),
        ({"operator": {"replicas": 0}}, "replicas"),
        ({"operator": {"image": {"digest": "latest"}}}, "digest"),
        ({"operator": {"image": {"repository": ""}}}, "repository"),
        ({"operator": {"logLevel": "info"}}, "logLevel"),
        ({"operator": {"resources": {"cpu": "1"}}}, "cpu"),
        ({"watchNamespaces": "team-a"}, "watchNamespaces"),
        ({"watchNamespaces": ["Team"]}, "watchNamespaces"),
        ({"jobs": {"runAsUser": 0}}, "runAsUser"),
        ({"jobs": {"bus": {"image": {"pullPolicy": "Always"}}}}, "pullPolicy"),
        ({"dashboard": {"fsGroup": "65532"}}, "fsGroup"),
        ({"networkPolicy": {"dnsPorts": []}}, "dnsPorts"),
        ({"jobs": {"credentialsLifetimeDays": 0}}, "credentialsLifetimeDays"),
        ({"jobs": {"startOneAtATime": "yes"}}, "startOneAtATime"),
        ({"jobs": {"startTurnSeconds": 5}}, "startTurnSeconds"),
        ({"jobs": {"podTemplate": {"containers": []}}}, "containers"),
        ({"jobs": {"defaultResources": {"trainers": {}}}}, "trainers"),
        ({"jobs": {"egressExcept": ["api.example"]}}, "egressExcept"),
        ({"redis": {"external": {"egressCidrs": ["10.0.0.1"]}}}, "egressCidrs"),
        ({"redis": {"host": "redis.example"}}, "host"),
        ({"redis": {"embedded": {"maxMemory": "1Gi"}}}, "maxMemory"),
        ({"redis": {"embedded": {"enabled": False}, "external": {"host": "r"}}}, "existingSecret"),
        ({"dashboard": {"image": {"repository": ""}}}, "repository"),
        ({"dashboard": {"port": 8080}}, "port"),
        ({"dashboard": {"readOnly": "yes"}}, "readOnly"),
        ({"dashboard": {"ingress": {"enabled": True}}}, "host"),
        ({"rbac": {"dashboardUsers": [{"kind": "Everybody", "name": "x"}]}}, "kind"),
        ({"networkPolicy": {"metricsFrom": [{}]}}, "metricsFrom"),
        ({"serviceMonitor": {"interval": "often"}}, "interval"),
        ({"clusterId": "east.1"}, "clusterId"),
        ({"global": {"imageRegistry": "mirror.example@sha256"}}, "imageRegistry"),
        ({"global": {"imagePullSecrets": ["mirror"]}}, "imagePullSecrets"),
        ({"commonLabels": {"app.kubernetes.io/name": "other"}}, "commonLabels"),
        ({"commonAnnotations": {"owner": 7}}, "commonAnnotations"),
        ({"operator": {"extraEnv": [{"name": "A", "values": "b"}]}}, "extraEnv"),
        ({"dashboard": {"extraEnvFrom": [{"secret": "proxy"}]}}, "extraEnvFrom"),
        ({"redis": {"embedded": {"extraVolumes": [{"emptyDir": {}}]}}}, "extraVolumes"),
        ({"operator": {"extraVolumeMounts": [{"name": "ca"}]}}, "extraVolumeMounts"),
        ({"operator": {"hostAliases": [{"ip": "10.0.0.1"}]}}, "hostAliases"),
        ({"dashboard": {"serviceAccount": {"create": "yes"}}}, "serviceAccount"),
        ({"sandbox": {"enabled": True}}, "tokenSecret"),
        ({"sandbox": {"maxima": {"memoryMib": 32}}}, "memoryMib"),
        ({"sandbox": {"maxima": {"cpus": 1}}}, "cpus"),
    ],
)
def test_values_that_mean_nothing_are_refused_by_name(helm: Helm, values: dict[str, Any], named: str) -> None:
    with pytest.raises(HelmFailed, match=named):
        helm.render(values)


def test_every_default_is_in_the_schema_and_every_key_of_the_schema_has_one() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(rule: dict[str, Any], default: Any, where: str) -> None:
        rule = schema["$defs"][rule["$ref"].rpartition("/")[2]] if "$ref" in rule else rule
        if rule.get("additionalProperties") is not False or not isinstance(default, dict) or not default:
            return
        known = set(rule["properties"])
        optional = {"limits", "requests", "claims"}
        assert known - optional <= set(default), f"{where}: no default"
        assert set(default) <= known, f"{where}: not in the schema"
        for key, value in default.items():
            compare(rule["properties"][key], value, f"{where}.{key}")

    compare(schema, defaults, "values")


def test_the_resource_is_the_file_with_labels_added(helm: Helm) -> None:
    [rendered] = of_kind(helm.render({}), "CustomResourceDefinition")
    committed = yaml.load(MANIFEST.read_text(), Loader=YamlLoader)
    assert rendered["spec"] == committed["spec"]
    assert rendered["metadata"]["name"] == committed["metadata"]["name"]
    assert rendered["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    [gone] = of_kind(helm.render({"crds": {"keep": False}}), "CustomResourceDefinition")
    assert "annotations" not in gone["metadata"]
    assert not of_kind(helm.render({"crds": {"install": False}}), "CustomResourceDefinition")


Rights = dict[tuple[str, str], tuple[set[str], tuple[str, ...]]]


def rights(objects: list[dict[str, Any]], component: str) -> Rights:
    """Return the rights of a component: (kind of role, resource) -> verbs and names."""
    return {
        (role["kind"], resource): (set(rule["verbs"]), tuple(rule.get("resourceNames", ())))
        for role in of_kind(objects, "ClusterRole", "Role")
        if role["metadata"]["labels"]["app.kubernetes.io/component"] == component
        for rule in role["rules"]
        for resource in rule["resources"]
    }


def test_the_operator_has_these_rights_and_no_other(helm: Helm) -> None:
    assert rights(helm.render({}), "operator") == {
        ("ClusterRole", "alignmentjobs"): ({"list", "watch", "delete"}, ()),
        ("ClusterRole", "alignmentjobs/status"): ({"patch"}, ()),
        ("ClusterRole", "pods"): ({"get", "list", "watch", "create", "patch", "delete"}, ()),
        ("ClusterRole", "secrets"): ({"get", "create"}, ()),
        ("ClusterRole", "configmaps"): ({"get", "create"}, ()),
        ("ClusterRole", "services"): ({"get", "create"}, ()),
        ("ClusterRole", "networkpolicies"): ({"get", "create"}, ()),
        ("ClusterRole", "poddisruptionbudgets"): ({"get", "create"}, ()),
        ("ClusterRole", "events"): ({"create", "patch"}, ()),
        ("Role", "leases"): ({"get", "update"}, (OPERATOR,)),
    }


@pytest.mark.parametrize("values", ["default", "two-namespaces", "plain-dashboard"])
def test_the_dashboard_reads_and_may_do_nothing_else(helm: Helm, values: str) -> None:
    objects = helm.render(VALUES[values])
    kind = "Role" if values == "two-namespaces" else "ClusterRole"
    expected: Rights = {
        (kind, "alignmentjobs"): ({"get", "list", "watch"}, ()),
        (kind, "pods"): ({"list"}, ()),
    }
    if values != "plain-dashboard":
        # Users reach the dashboard through the API server's proxy; their tokens decide what they see.
        passing = {"get", "create", "update", "patch", "delete"}
        expected["Role", "services/proxy"] = (passing, (f"https:{DASHBOARD}:https",))
    assert rights(objects, "dashboard") == expected
    bound = [
        binding["roleRef"]["name"]
        for binding in of_kind(objects, "ClusterRoleBinding")
        if binding["metadata"]["labels"]["app.kubernetes.io/component"] == "dashboard"
    ]
    assert sorted(bound) == sorted(["system:auth-delegator", *([] if kind == "Role" else [DASHBOARD])])


@pytest.mark.parametrize("name", VALUES)
def test_the_dashboard_reads_its_environment(helm: Helm, name: str) -> None:
    spec = pod_specs(helm.render(VALUES[name])).get(
        f"Deployment/{VALUES[name].get('fullnameOverride', RELEASE)}-dashboard"
    )
    assert (spec is None) == (name == "no-dashboard")
    if spec is None:
        return
    [container] = spec["containers"]
    own = {item["name"]: item["value"] for item in container["env"] if item["name"].startswith("KUBEALIGN_")}
    settings = from_environment(own)
    # The dashboard would silently ignore an unknown variable.
    assert set(own) <= {f"KUBEALIGN_{field.upper()}" for field in DashboardSettings.model_fields}
    [port] = container["ports"]
    assert (settings.listen.host, settings.listen.port) == ("0.0.0.0", port["containerPort"])
    assert list(settings.namespaces) == VALUES[name].get("watchNamespaces", [])
    assert settings.read_only == (name == "dashboard")
    assert (settings.redis_host is None) == (name == "no-redis")
    added = VALUES[name].get("dashboard", {}).get("extraVolumeMounts", [])
    mounted = {mount["mountPath"] for mount in container["volumeMounts"] if mount not in added}
    files = (
        settings.tls_cert_file,
        settings.tls_key_file,
        settings.redis_password_file,
        settings.redis_ca_file,
    )
    assert {str(file.parent) for file in files if file is not None} == mounted - {"/tmp"}
    plain = name == "plain-dashboard"
    assert port["name"] == ("http" if plain else "https")
    assert (settings.listen_local is None) == (settings.tls_cert_file is None) == plain


def test_named_namespaces_get_a_role_each_and_the_cluster_none(helm: Helm) -> None:
    objects = helm.render(VALUES["two-namespaces"])
    assert not of_kind(objects, "ClusterRole")
    # Reviews of tokens and rights belong to no namespace; Kubernetes' own role allows nothing else.
    [reviews] = of_kind(objects, "ClusterRoleBinding")
    assert reviews["roleRef"]["name"] == "system:auth-delegator"
    roles = {role["metadata"]["namespace"] for role in of_kind(objects, "Role")}
    bindings = of_kind(objects, "RoleBinding")
    assert roles == {binding["metadata"]["namespace"] for binding in bindings}
    assert roles == {"team-a", "team-b", "kubealign-system"}
    for binding in bindings:
        name = binding["metadata"]["name"]
        if name != f"{DASHBOARD}-users":
            account = {"kind": "ServiceAccount", "name": name.removesuffix("-lease")}
            account["namespace"] = "kubealign-system"
            assert binding["subjects"] == [account]


def test_a_pod_gets_an_api_token_only_where_it_asks_the_api(helm: Helm) -> None:
    specs = pod_specs(helm.render(VALUES["dashboard"]))
    with_token = {name for name, spec in specs.items() if spec["automountServiceAccountToken"]}
    assert with_token == {f"Deployment/{OPERATOR}", f"Deployment/{DASHBOARD}", f"Pod/{RELEASE}-test"}


def sandbox_settings(pod: dict[str, Any]) -> ServiceSettings:
    """Return the settings of the sandbox service, parsed by it from its command line without TLS."""
    [container] = pod["containers"]
    assert container["command"] == ["python", "-m", "kubealign_services.scoring.sandbox_server.main"]
    arguments = [argument for argument in container["args"] if not argument.startswith("--tls-folder")]
    [variable] = container["env"]
    return read_settings(make_parser().parse_args(arguments), {variable["name"]: "secret"})


@pytest.mark.parametrize("name", ["sandbox", "tls-sandbox"])
def test_the_sandbox_service_reads_its_arguments(helm: Helm, name: str) -> None:
    objects = helm.render(VALUES[name])
    pod = pod_specs(objects)[f"Deployment/{SANDBOX}"]
    settings = sandbox_settings(pod)
    assert (settings.host, settings.port, settings.programs, settings.token) == (
        "0.0.0.0",
        8080,
        64,
        "secret",
    )
    maxima = settings.maxima
    assert (maxima.seconds_per_test, maxima.memory_mib, maxima.output_bytes) == (
        (30.0, 1024, 2**20) if name == "sandbox" else (7.5, 2048, 2**20)
    )
    [container] = pod["containers"]
    has_tls = name == "tls-sandbox"
    assert ("--tls-folder=/etc/kubealign/tls" in container["args"]) == has_tls
    [service] = [item for item in of_kind(objects, "Service") if item["metadata"]["name"] == SANDBOX]
    [port] = service["spec"]["ports"]
    assert port == {"name": "https" if has_tls else "http", "port": 8080, "targetPort": port["name"]}
    assert container["ports"] == [{"name": port["name"], "containerPort": 8080}]


@pytest.mark.parametrize("name", ["sandbox", "tls-sandbox"])
def test_the_sandbox_service_has_no_rights_and_no_way_out(helm: Helm, name: str) -> None:
    """Neither an account's token, nor root, nor egress; the pods of jobs alone reach it."""
    objects = helm.render(VALUES[name])
    pod = pod_specs(objects)[f"Deployment/{SANDBOX}"]
    assert pod["automountServiceAccountToken"] is False and "serviceAccountName" not in pod
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True and context["runAsUser"] == 65532
    if name == "sandbox":
        assert context["seccompProfile"] == {
            "type": "Localhost",
            "localhostProfile": "profiles/kubealign-sandbox.json",
        }
        assert "appArmorProfile" not in context
    else:
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert context["appArmorProfile"] == {"type": "Localhost", "localhostProfile": "sandbox"}
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    [policy] = [item for item in of_kind(objects, "NetworkPolicy") if item["metadata"]["name"] == SANDBOX]
    spec = policy["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"] and "egress" not in spec
    [workload] = [item for item in of_kind(objects, "Deployment") if item["metadata"]["name"] == SANDBOX]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert spec["podSelector"]["matchLabels"].items() <= labels.items()
    [rule] = spec["ingress"]
    assert rule["ports"] == [{"port": 8080, "protocol": "TCP"}]
    [peer] = rule["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/managed-by"] == "kubealign"
    namespaces = peer["namespaceSelector"]
    assert (namespaces == {}) == (name == "tls-sandbox")


def test_there_is_no_sandbox_service_by_default(helm: Helm) -> None:
    assert not [item for item in helm.render({}) if item["metadata"]["name"] == SANDBOX]


def test_a_new_chart_alone_restarts_nothing(helm: Helm, tmp_path: Path) -> None:
    before = of_kind(helm.render({}), "Deployment", "StatefulSet")
    images = {"operator": {"image": {"tag": "1"}}, "jobs": {"image": {"tag": "1"}}}
    pinned = of_kind(helm.render(images), "Deployment", "StatefulSet")
    for workload in before:
        assert "helm.sh/chart" not in workload["spec"]["template"]["metadata"]["labels"]
    changed = [new["kind"] for old, new in zip(before, pinned, strict=True) if old["spec"] != new["spec"]]
    assert changed == ["Deployment"]


def test_versions_agree() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((CHART.parents[1] / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]


def test_what_the_registry_of_charts_shows(helm: Helm, tmp_path: Path) -> None:
    """Check the annotations that Artifact Hub reads: images as rendered, and a valid example of a job."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    annotations = {
        name.partition("/")[2]: yaml.safe_load(text) for name, text in chart["annotations"].items()
    }
    objects = helm.render({"jobs": {"bus": {"image": {"repository": "kubealign-nats"}}}})
    platform = configuration(objects, tmp_path).platform
    containers = {pod["containers"][0]["image"] for pod in pod_specs(objects).values()}
    rendered = {*containers, platform.image, platform.bus_image}
    assert {item["image"] for item in annotations["images"]} == rendered
    [definition] = of_kind(objects, "CustomResourceDefinition")
    [described] = annotations["crds"]
    assert described["name"] == definition["metadata"]["name"]
    assert described["version"] in {version["name"] for version in definition["spec"]["versions"]}
    [example] = annotations["crdsExamples"]
    [job] = parse_jobs(yaml.safe_dump(example))
    assert job.metadata.name == example["metadata"]["name"]


def test_the_readme_names_values_of_the_chart() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    rows = re.findall(r"^\| (`.*?) \|", (CHART / "README.md").read_text(), re.MULTILINE)
    paths = [path for row in rows for path in re.findall(r"`([\w.]+)(?:: [a-z]+)?`", row)]
    assert "jobs.podTemplate" in paths
    for path in paths:
        value: Any = defaults
        for part in path.split("."):
            assert part in value, path
            value = value[part]

"""Settings of the chart for a company's clusters: registry, labels, accounts, certificates and proxies."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.support.chart_values import EXTRAS, VALUES
from cluster.support.helm import NAMESPACE, RELEASE, Helm, of_kind, pod_specs
from cluster.support.programs import find

pytestmark = pytest.mark.skipif(find("helm") is None, reason="helm is not built: `make cluster-tools`")

Json = dict[str, Any]

COMPONENTS = {
    "operator": f"Deployment/{RELEASE}-operator",
    "dashboard": f"Deployment/{RELEASE}-dashboard",
    "redis": f"StatefulSet/{RELEASE}-redis",
}
ACCOUNTS = {"operator": "aligner", "dashboard": "board", "redis": "store"}


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    return Helm(tmp_path / "helm")


@pytest.fixture
def company(helm: Helm) -> list[Json]:
    return helm.render(VALUES["company"])


def images(objects: list[Json]) -> set[str]:
    """Return the images of all containers, and those of the pods of jobs."""
    maps = of_kind(objects, "ConfigMap")
    [text] = [item["data"]["config.yaml"] for item in maps if item["metadata"]["name"].endswith("-operator")]
    containers = [pod["containers"][0]["image"] for pod in pod_specs(objects).values()]
    platform = yaml.safe_load(text)["platform"]
    return {*containers, platform["image"], platform["busImage"]} - {""}


def test_one_registry_for_all_images(company: list[Json], helm: Helm) -> None:
    version = "0.1.0"
    assert images(company) == {
        f"mirror.example:5000/ml/kubealign-operator:{version}",
        f"mirror.example:5000/ml/kubealign-dashboard:{version}",
        f"mirror.example:5000/ml/kubealign-services:{version}",
        f"mirror.example:5000/ml/kubealign-nats:{version}",
        "mirror.example:5000/ml/library/redis:7.2-alpine",
    }
    digest = f"sha256:{'b' * 64}"
    values = {
        "global": {"imageRegistry": "mirror.example/"},
        "operator": {"image": {"repository": "registry.example:5000/team/op", "digest": digest}},
        "dashboard": {"image": {"repository": "team/board"}},
        "jobs": {"image": {"repository": "localhost/services"}},
    }
    assert images(helm.render(values)) == {
        f"mirror.example/team/op@{digest}",
        f"mirror.example/team/board:{version}",
        f"mirror.example/services:{version}",
        "mirror.example/library/redis:7.2-alpine",
    }


def test_pull_secrets_of_the_chart_and_of_all_charts(company: list[Json]) -> None:
    for pod in pod_specs(company).values():
        assert pod["imagePullSecrets"] == [{"name": "mirror"}, {"name": "registry"}]


def test_every_object_has_the_common_labels_and_annotations(company: list[Json]) -> None:
    for manifest in company:
        metadata = manifest["metadata"]
        name = f"{manifest['kind']}/{metadata['name']}"
        assert metadata["labels"]["cost-centre"] == "7", name
        # An annotation of an object itself has precedence.
        owner = "board-team" if metadata["name"].endswith("-grafana") else "ml-platform"
        assert metadata["annotations"]["owner"] == owner, name
        if "template" in manifest.get("spec", {}):
            pod = manifest["spec"]["template"]["metadata"]
            assert pod["labels"]["cost-centre"] == "7", name
            # Selectors cannot change once they exist.
            assert "cost-centre" not in manifest["spec"]["selector"]["matchLabels"], name
            assert manifest["spec"]["selector"]["matchLabels"].items() <= pod["labels"].items()


def test_annotations_of_the_chart_remain(company: list[Json]) -> None:
    [test_pod] = of_kind(company, "Pod")
    assert test_pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    [definition] = of_kind(company, "CustomResourceDefinition")
    assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


@pytest.mark.parametrize("component", COMPONENTS)
def test_additions_to_the_pods_of_a_component(company: list[Json], component: str) -> None:
    pod = pod_specs(company)[COMPONENTS[component]]
    [container] = pod["containers"]
    assert EXTRAS["extraEnv"][0] in container["env"]
    assert container["envFrom"] == EXTRAS["extraEnvFrom"]
    assert EXTRAS["extraVolumeMounts"][0] in container["volumeMounts"]
    assert EXTRAS["extraVolumes"][0] in pod["volumes"]
    assert pod["hostAliases"] == EXTRAS["hostAliases"]
    kind, _, name = COMPONENTS[component].partition("/")
    [workload] = [item for item in of_kind(company, kind) if item["metadata"]["name"] == name]
    metadata = workload["spec"]["template"]["metadata"]
    assert EXTRAS["podLabels"].items() <= metadata["labels"].items()
    assert EXTRAS["podAnnotations"].items() <= metadata["annotations"].items()


def test_accounts_of_the_chart_and_existing_ones(company: list[Json]) -> None:
    pods = pod_specs(company)
    assert {name: pods[pod]["serviceAccountName"] for name, pod in COMPONENTS.items()} == ACCOUNTS
    created = {
        account["metadata"]["name"]: account["metadata"]["annotations"].get("cloud.example/role")
        for account in of_kind(company, "ServiceAccount")
    }
    assert created == {"aligner": "aligner", "store": "store"}
    bound = {
        (binding["metadata"]["labels"]["app.kubernetes.io/component"], subject["name"])
        for binding in of_kind(company, "ClusterRoleBinding", "RoleBinding")
        for subject in binding["subjects"]
        if subject["kind"] == "ServiceAccount"
    }
    assert bound == {("operator", "aligner"), ("dashboard", "board")}


def test_accounts_without_names(helm: Helm) -> None:
    objects = helm.render({})
    pods = pod_specs(objects)
    accounts = {name: pods[pod].get("serviceAccountName") for name, pod in COMPONENTS.items()}
    assert accounts == {"operator": f"{RELEASE}-operator", "dashboard": f"{RELEASE}-dashboard", "redis": None}
    existing = helm.render({"operator": {"serviceAccount": {"create": False}}})
    assert pod_specs(existing)[COMPONENTS["operator"]]["serviceAccountName"] == "default"
    subjects = [
        subject
        for binding in of_kind(existing, "ClusterRoleBinding")
        if binding["metadata"]["name"] == f"{RELEASE}-operator"
        for subject in binding["subjects"]
    ]
    assert subjects == [{"kind": "ServiceAccount", "name": "default", "namespace": NAMESPACE}]

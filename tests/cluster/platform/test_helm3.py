"""The chart under Helm 3: the same objects, and the same refusals, as under Helm 4."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.support.chart_values import VALUES
from cluster.support.helm import CHART, NAMESPACE, RELEASE, Helm, HelmFailed
from cluster.support.programs import find

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        find("helm") is None or find("helm3") is None, reason="helm3 is not built: `make helm3-tools`"
    ),
]

Json = dict[str, Any]

#: Values that use most of the templates; null values and merged ones are where the versions could differ.
_NAMES = ("default", "openshift", "company", "everything", "external-redis", "dashboard")


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    return Helm(tmp_path / "helm")


@pytest.fixture
def helm3(tmp_path: Path) -> Helm:
    return Helm(tmp_path / "helm3", program_name="helm3")


def rendered(helm: Helm, values: Json, *options: str) -> dict[tuple[str, str, str], Json]:
    """Return the objects by kind, namespace and name; generated contents of Secrets are left out."""
    file = str(helm.values(values))
    where = ("--namespace", NAMESPACE, "--kube-version", "1.35.0", "-f", file, *options)
    objects = {}
    for item in yaml.load_all(helm("template", RELEASE, str(CHART), *where), Loader=yaml.CSafeLoader):
        if item is None:
            continue
        for field in ("data", "stringData"):
            if item["kind"] == "Secret" and field in item:
                item[field] = sorted(item[field])
        metadata = item["metadata"]
        objects[item["kind"], metadata.get("namespace", ""), metadata["name"]] = item
    return objects


def test_the_programs_are_of_both_major_versions(helm: Helm, helm3: Helm) -> None:
    assert helm("version", "--short").startswith("v4.")
    assert helm3("version", "--short").startswith("v3.")


@pytest.mark.parametrize("name", _NAMES)
def test_both_render_the_same_objects(helm: Helm, helm3: Helm, name: str) -> None:
    # The definition is large and the same for all values.
    options = () if name == "default" else ("--set", "crds.install=false")
    assert rendered(helm3, VALUES[name], *options) == rendered(helm, VALUES[name], *options)


def test_helm_3_finds_nothing_wrong(helm3: Helm) -> None:
    helm3("lint", str(CHART), "--strict", "--quiet", "-f", str(helm3.values(VALUES["company"])))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"operators": {}}, "operators"),
        ({"jobs": {"runAsUser": 0}}, "runAsUser"),
        ({"commonLabels": {"app.kubernetes.io/name": "other"}}, "commonLabels"),
    ],
)
def test_helm_3_refuses_values_by_name(helm3: Helm, values: Json, named: str) -> None:
    with pytest.raises(HelmFailed, match=named):
        rendered(helm3, values)

"""Helm commands, and queries on the objects that the chart renders."""

import json
import pickle
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from .daemon import plain_environment
from .programs import program

CHART = Path(__file__).resolve().parents[3] / "charts" / "kubealign"
NAMESPACE = "kubealign-system"
RELEASE = "kubealign"
# Newer than every API version that the chart uses; with a cluster, Helm asks the cluster for its version.
_KUBERNETES = "1.35.0"
# libyaml: the definition of the jobs alone takes two seconds with the parser in Python.
YamlLoader = yaml.CSafeLoader
# Objects that this process has rendered, pickled, by their values as JSON.
_rendered: dict[str, bytes] = {}

Json = dict[str, Any]


class HelmFailed(Exception):
    """helm ended with an error; the text has the command and its output."""


class Helm:
    """helm with private cache, config and data folders, for one cluster or for none."""

    def __init__(self, folder: Path, kubeconfig: Path | None = None, program_name: str = "helm") -> None:
        """Prepare helm.

        Args:
            program_name: helm, which is Helm 4, or helm3.
        """
        self._folder = folder
        self._program_name = program_name
        self._environment = plain_environment()
        for kind in ("CACHE", "CONFIG", "DATA"):
            self._environment[f"HELM_{kind}_HOME"] = str(folder / kind.lower())
        self._environment["KUBECONFIG"] = str(kubeconfig or folder / "none.kubeconfig")
        # Without KUBECACHEDIR and HOME, helm caches API discovery in the current folder.
        self._environment["KUBECACHEDIR"] = str(folder / "kube-cache")
        # Other files of helm belong in the folder of the test, not in the working directory.
        self._environment["HOME"] = str(folder)

    def __call__(self, *arguments: str, timeout: float = 60.0) -> str:
        """Run helm and return its output.

        Raises HelmFailed on failure, TimeoutExpired after `timeout` seconds."""
        done = subprocess.run(
            [str(program(self._program_name)), *arguments],
            text=True,
            capture_output=True,
            timeout=timeout,
            env=self._environment,
            check=False,
        )
        if done.returncode != 0:
            raise HelmFailed(
                f"helm {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}".rstrip()
            )
        return done.stdout

    def values(self, chart_values: Mapping[str, Any]) -> Path:
        """Write a file with values, for `-f`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        number = len(list(self._folder.glob("values-*.yaml")))
        file = self._folder / f"values-{number}.yaml"
        file.write_text(yaml.safe_dump(dict(chart_values)))
        return file

    def render(self, chart_values: Mapping[str, Any]) -> list[Json]:
        """Return every object of a release with these values, the pod of `helm test` included.

        Rendering needs no cluster. The same values are rendered once in a process, generated passwords and
        certificates included; the objects are the caller's own."""
        key = json.dumps([self._program_name, chart_values], sort_keys=True)
        if key not in _rendered:
            where = ("--namespace", NAMESPACE, "--kube-version", _KUBERNETES)
            text = self("template", RELEASE, str(CHART), *where, "-f", str(self.values(chart_values)))
            documents = yaml.load_all(text, Loader=YamlLoader)
            _rendered[key] = pickle.dumps([manifest for manifest in documents if manifest is not None])
        objects: list[Json] = pickle.loads(_rendered[key])
        return objects


def of_kind(objects: Iterable[Json], *kinds: str) -> list[Json]:
    """Return the objects of the given kinds."""
    return [manifest for manifest in objects if manifest["kind"] in kinds]


def pod_specs(objects: Iterable[Json]) -> dict[str, Json]:
    """Return the spec of every pod and pod template among the objects, by KIND/NAME."""
    specs = {}
    for manifest in objects:
        name = f"{manifest['kind']}/{manifest['metadata']['name']}"
        if manifest["kind"] == "Pod":
            specs[name] = manifest["spec"]
        elif "template" in manifest.get("spec", {}):
            specs[name] = manifest["spec"]["template"]["spec"]
    return specs

"""Helm, as a test calls it, and what the chart renders to."""

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
# Newer than every API version that the chart uses; a cluster's own is asked where there is one.
_KUBERNETES = "1.35.0"

Json = dict[str, Any]


class HelmFailed(Exception):
    """helm ended with an error; the text has the command and what it printed."""


class Helm:
    """helm, with folders of its own, for one cluster or for none."""

    def __init__(self, folder: Path, kubeconfig: Path | None = None) -> None:
        self._folder = folder
        self._environment = plain_environment()
        for kind in ("CACHE", "CONFIG", "DATA"):
            self._environment[f"HELM_{kind}_HOME"] = str(folder / kind.lower())
        self._environment["KUBECONFIG"] = str(kubeconfig or folder / "none.kubeconfig")
        # Without it, and without a home, what it learns of the API would lie in the current folder.
        self._environment["KUBECACHEDIR"] = str(folder / "kube-cache")
        # What else it keeps lies with the test, not in the folder that it is called from.
        self._environment["HOME"] = str(folder)

    def __call__(self, *arguments: str, timeout: float = 60.0) -> str:
        """What it printed. Raises HelmFailed when it fails, TimeoutExpired after `timeout` seconds."""
        done = subprocess.run(
            [str(program("helm")), *arguments],
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

    def values(self, held: Mapping[str, Any]) -> Path:
        """A file with values, for `-f`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        number = len(list(self._folder.glob("values-*.yaml")))
        file = self._folder / f"values-{number}.yaml"
        file.write_text(yaml.safe_dump(dict(held)))
        return file

    def render(self, held: Mapping[str, Any]) -> list[Json]:
        """Every object of a release with these values, the test's pod included. Asks no cluster."""
        where = ("--namespace", NAMESPACE, "--kube-version", _KUBERNETES)
        text = self("template", RELEASE, str(CHART), *where, "-f", str(self.values(held)))
        return [found for found in yaml.safe_load_all(text) if found is not None]


def of_kind(objects: Iterable[Json], *kinds: str) -> list[Json]:
    """Those of some kinds."""
    return [found for found in objects if found["kind"] in kinds]


def pod_specs(objects: Iterable[Json]) -> dict[str, Json]:
    """The spec of every pod that the objects ask for, by KIND/NAME."""
    specs = {}
    for found in objects:
        name = f"{found['kind']}/{found['metadata']['name']}"
        if found["kind"] == "Pod":
            specs[name] = found["spec"]
        elif "template" in found.get("spec", {}):
            specs[name] = found["spec"]["template"]["spec"]
    return specs

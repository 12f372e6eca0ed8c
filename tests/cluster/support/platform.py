"""Complete platform on a real node: Helm installs the chart with images built from this checkout."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubealign.local.servers.redis import find_redis_program

from .built_images import OPERATOR, operator_image
from .cluster import Cluster
from .failure_report import pods_report
from .helm import CHART, NAMESPACE, RELEASE, Helm, HelmFailed
from .host_bind import HOST_BIND, path_in_containers

_INSTALL_SECONDS = 180.0
_GONE_SECONDS = 90
_PROBE_SECONDS = 10.0


class PlatformNotInstalled(Exception):
    """The platform's pods did not become ready; the text has their conditions, events and logs."""


def redis_with_tls() -> Path | None:
    """Return a Redis server of this machine with TLS support, which the wheel's server lacks."""
    program = shutil.which("redis-server")
    if program is None:
        return None
    linked = subprocess.run(
        ["ldd", program], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
    )
    return Path(program) if "libssl" in linked.stdout else None


def _image(reference: str) -> dict[str, str]:
    repository, _, tag = reference.partition(":")
    return {"repository": f"docker.io/library/{repository}", "tag": tag, "pullPolicy": "Never"}


def platform_values() -> dict[str, Any]:
    """Return chart values for the operator in its own image.

    Dashboard, Redis and the pods of jobs run this machine's programs."""
    redis = redis_with_tls()
    program = path_in_containers(redis or find_redis_program())
    return {
        "operator": {"image": _image(OPERATOR)},
        "jobs": {"image": _image(HOST_BIND)},
        "dashboard": {"image": _image(HOST_BIND)},
        "redis": {
            "embedded": {
                "image": _image(HOST_BIND),
                "command": [str(program)],
                "cli": [str(program.with_name("redis-cli"))],
                # The bundled server is older than Redis 7.
                "maxMemoryClients": "64mb" if redis is not None else "",
                "tls": redis is not None,
                "persistence": {"enabled": False},
            }
        },
    }


@contextmanager
def installed(cluster: Cluster, folder: Path, values: Mapping[str, Any] | None = None) -> Iterator[Helm]:
    """Install the platform in NAMESPACE and wait until it is ready; uninstall it at the end with all jobs.

    `values` replaces platform_values(). Raises BuildImpossible where the operator's image cannot be built."""
    cluster.import_image(operator_image())
    with _system_namespace(cluster), _released(cluster, folder, values or platform_values()) as helm:
        yield helm


@contextmanager
def _released(cluster: Cluster, folder: Path, values: Mapping[str, Any]) -> Iterator[Helm]:
    helm = Helm(folder, cluster.control_plane.kubeconfig)
    where = ("--namespace", NAMESPACE, "-f", str(helm.values(values)), "--set", "crds.keep=false")
    waiting = ("--wait", "--timeout", f"{_INSTALL_SECONDS:.0f}s")
    try:
        try:
            helm("install", RELEASE, str(CHART), *where, *waiting, timeout=_INSTALL_SECONDS + 30)
        except HelmFailed as error:
            raise PlatformNotInstalled(f"{error}\n{pods_report(cluster.kubectl, NAMESPACE)}") from error
        yield helm
    finally:
        uninstall = ("uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found", "--wait")
        helm(*uninstall, timeout=_INSTALL_SECONDS)
        # Helm waits for the objects that it made, which do not include the pods of a Deployment.
        gone = ("wait", "pods", "--all", "-n", NAMESPACE, "--for=delete", f"--timeout={_GONE_SECONDS}s")
        cluster.kubectl(*gone, timeout=_GONE_SECONDS + 10)


@contextmanager
def _system_namespace(cluster: Cluster) -> Iterator[None]:
    """Create NAMESPACE with enforced Pod Security, and delete it at the end."""
    cluster.kubectl.create_namespace(NAMESPACE)
    cluster.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    try:
        yield
    finally:
        waiting = f"--timeout={_GONE_SECONDS}s"
        cluster.kubectl("delete", "namespace", NAMESPACE, waiting, timeout=_GONE_SECONDS + 10)

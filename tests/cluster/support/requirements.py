"""Requirements of a machine that runs real pods."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from . import cgroups
from .programs import Level, find

CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_TRIAL_SECONDS = 10
_NOT_IN_MAKE_TEST = (
    Level.NETWORK_POLICY,
    Level.HELM3,
    Level.KUBERNETES_1_33,
    Level.KUBERNETES_1_34,
)
_CNI_PLUGINS = ("ptp", "host-local", "portmap", "loopback")
# Command -> Debian package.
_COMMANDS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "mount": "mount",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}


class NodeImpossible(Exception):
    """Real pods cannot run on this machine; the text names everything that is missing."""


def cni_folder() -> Path | None:
    """Return the folder of the network plugins; None if a required plugin is missing."""
    for folder in CNI_FOLDERS:
        if all(os.access(folder / plugin, os.X_OK) for plugin in _CNI_PLUGINS):
            return folder
    return None


@cache
def missing_for_a_node() -> tuple[str, ...]:
    """Return the requirements of a node that this machine lacks, one phrase each."""
    return tuple(_missing())


def _missing() -> list[str]:
    if os.uname().sysname != "Linux":
        return ["Linux"]
    lacking = []
    if os.geteuid() != 0:
        lacking.append(f"root (this is user {os.geteuid()})")
    absent = {package for command, package in _COMMANDS.items() if shutil.which(command) is None}
    lacking += [f"the package {package}" for package in sorted(absent)]
    if cni_folder() is None:
        lacking.append(f"the package containernetworking-plugins (in {' or '.join(map(str, CNI_FOLDERS))})")
    if lacking:
        return lacking
    if not _makes_namespaces():
        lacking.append("the right to make namespaces (CAP_SYS_ADMIN)")
    fixed = [str(tree) for tree in cgroups.hierarchies() if not os.access(tree, os.W_OK)]
    if fixed:
        lacking.append(f"control groups that can be written ({', '.join(fixed)})")
    return lacking


def missing_for_network_policies() -> tuple[str, ...]:
    """Return the requirements for the enforcement of NetworkPolicies, without those of a node."""
    lacking = []
    if find("kube-router") is None:
        lacking.append("kube-router (`make network-policy-tools`)")
    # kube-router runs this command.
    if shutil.which("ipset") is None:
        lacking.append("the package ipset")
    return tuple(lacking)


def _makes_namespaces() -> bool:
    command = ["unshare", "--pid", "--fork", "--mount", "--net", "true"]
    return subprocess.run(command, capture_output=True, timeout=_TRIAL_SECONDS, check=False).returncode == 0


def usable_levels() -> list[Level]:
    """Return the levels of programs of `make test` that this machine can use."""
    levels = [level for level in Level if level not in _NOT_IN_MAKE_TEST]
    return [level for level in levels if level is not Level.NODE or not missing_for_a_node()]


def require_node() -> None:
    """Check that real pods can run. Raises NodeImpossible otherwise."""
    if lacking := missing_for_a_node():
        raise NodeImpossible(f"a real node needs {', '.join(lacking)}")

"""Configuration of a node's programs: pure functions that return the text of the files."""

import json
from collections.abc import Sequence
from pathlib import Path

import yaml

from .behaviour import Json
from .host_bind import KERNEL_CACHE, PAUSE, HostFolder
from .namespaces import Addresses

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
DNS_READY_PORT = 8181
# Short paths, independent of the cluster's folder: the path of a Unix socket holds 107 bytes.
CONTAINERD_FOLDER = "/var/lib/containerd"
KUBELET_FOLDER = "/var/lib/kubelet"
POD_LOGS_FOLDER = "/var/log/pods"


def containerd(cni: Path, plugins: Path, base_spec: Path) -> str:
    """Return containerd's settings; its sockets are in the /run of the node."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "{CONTAINERD_FOLDER}"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[grpc]
address = "{CONTAINERD_SOCKET}"
[{cri}]
sandbox_image = "docker.io/library/{PAUSE}"
restrict_oom_score_adj = true
[{cri}.cni]
bin_dir = {_quoted(plugins)}
conf_dir = {_quoted(cni)}
[{cri}.containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = {_quoted(base_spec)}
"""


def base_spec(default: Json, folders: Sequence[HostFolder], kernels: Path) -> str:
    """Return the base spec of every container.

    It is containerd's default with the host's folders, read-only, and with `kernels` at KERNEL_CACHE,
    writable."""
    mounts = [
        {
            "destination": str(folder.inside),
            "source": str(folder.source),
            "type": "bind",
            "options": ["rbind", "ro", "nosuid", "nodev"],
        }
        for folder in folders
    ]
    cache = {
        "destination": str(KERNEL_CACHE),
        "source": str(kernels),
        "type": "bind",
        "options": ["rbind", "rw", "nosuid", "nodev"],
    }
    return json.dumps({**default, "mounts": [*default["mounts"], *mounts, cache]})


def network(addresses: Addresses) -> str:
    """Return a CNI configuration with one routed link for each pod.

    Every packet passes the node's Service rules in both directions. The plugins enforce no
    NetworkPolicies."""
    ranges = {"subnet": addresses.pods, "routes": [{"dst": "0.0.0.0/0"}]}
    ptp = {"type": "ptp", "mtu": 1500, "ipam": {"type": "host-local", "dataDir": "/run/cni", **ranges}}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.4.0", "name": "kubealign", "plugins": [ptp, ports]})


def kubelet(dns: str, authority: Path, cgroup: str, resolver: Path, restart_seconds: int) -> str:
    """Return the kubelet's settings.

    Args:
        dns: Address of the DNS server.
        restart_seconds: Longest wait before a container restart.
    """
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(authority)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroup}",
            "clusterDNS": [dns],
            "clusterDomain": "cluster.local",
            "containerLogMaxSize": "50Mi",
            "crashLoopBackOff": {"maxContainerRestartPeriod": f"{restart_seconds}s"},
            "enforceNodeAllocatable": [],
            "eventRecordQPS": 0,
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "200Mi"},
            "failCgroupV1": False,
            "failSwapOn": False,
            "featureGates": {"KubeletCrashLoopBackOffMax": True},
            "imageGCHighThresholdPercent": 100,
            "imageMaximumGCAge": "0s",
            "kubeAPIQPS": 500,
            "kubeAPIBurst": 1000,
            "maxOpenFiles": 10000,
            "maxPods": 200,
            "nodeStatusUpdateFrequency": "5s",
            "oomScoreAdj": 0,
            "podLogsDir": POD_LOGS_FOLDER,
            "resolvConf": str(resolver),
            "serializeImagePulls": False,
            "syncFrequency": "1s",
        }
    )


def kube_proxy(addresses: Addresses, kubeconfig: Path, node: str) -> str:
    """Return kube-proxy's settings. Rules follow a change of a Service within a tenth of a second."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "mode": "iptables",
            "iptables": {"minSyncPeriod": "100ms"},
            "hostnameOverride": node,
            "clusterCIDR": addresses.pods,
            "detectLocalMode": "ClusterCIDR",
            "conntrack": {"maxPerCore": 0, "min": 0},
        }
    )


def corefile(addresses: Addresses, kubeconfig: Path) -> str:
    """Return CoreDNS's settings: the cluster's names, and NXDOMAIN at once for every other name."""
    return f"""cluster.local in-addr.arpa {{
  bind {addresses.node}
  errors
  ready {addresses.node}:{DNS_READY_PORT}
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {kubeconfig}
    ttl 1
  }}
}}
. {{
  bind {addresses.node}
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
"""


def _quoted(path: Path) -> str:
    return json.dumps(str(path))

"""Connection attempts from pods, and the ports on which pods listen."""

import json
from collections.abc import Collection
from dataclasses import dataclass

from .behaviour import Json
from .host_bind import HOST_BIND
from .kubectl import Kubectl

#: Port of a pod of `listening_pod`.
LISTENER_PORT = 8080
_CONNECT_SECONDS = 3.0

# An error other than a refusal or a timeout ends the script: a missing route says nothing about policies.
_PROBE = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor

def reaches(target):
    try:
        socket.create_connection(tuple(target), timeout=float(sys.argv[2])).close()
    except (ConnectionRefusedError, TimeoutError):
        return False
    return True

with ThreadPoolExecutor(64) as pool:
    print(json.dumps(list(pool.map(reaches, json.loads(sys.argv[1])))))
"""

# The address of the pod, and every socket in the state LISTEN (0A) but those of the loopback interface.
_LISTENING = """
import json, pathlib, socket
ports = set()
for name in ("tcp", "tcp6"):
    for line in pathlib.Path("/proc/net", name).read_text().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        address, port = local.split(":")
        loopback = address.endswith("7F") or address == "00000000000000000000000001000000"
        if state == "0A" and not loopback:
            ports.add(int(port, 16))
print(json.dumps([socket.gethostbyname(socket.gethostname()), sorted(ports)]))
"""

_LISTEN = f"""
import socket
listener = socket.create_server(("", {LISTENER_PORT}))
while True:
    listener.accept()[0].close()
"""

_RESOLVE = "import socket, sys; print(socket.gethostbyname(sys.argv[1]))"


@dataclass(frozen=True, order=True)
class Target:
    """A TCP port of an address. `name` is for messages: the pod, for example."""

    name: str
    address: str
    port: int


@dataclass(frozen=True)
class Prober:
    """A running pod with Python, from which connections are tried."""

    kubectl: Kubectl
    namespace: str
    pod: str

    def reached(self, targets: Collection[Target]) -> set[Target]:
        """Return the targets that accept a connection. Others refuse it or do not answer for 3 seconds.

        Raises KubectlFailed on every other error, such as a missing route."""
        ordered = sorted(targets)
        addresses = json.dumps([[target.address, target.port] for target in ordered])
        answers = json.loads(self._python(_PROBE, addresses, str(_CONNECT_SECONDS)))
        return {target for target, is_reached in zip(ordered, answers, strict=True) if is_reached}

    def reaches(self, target: Target) -> bool:
        return bool(self.reached([target]))

    def listening(self) -> set[Target]:
        """Return the TCP ports on which processes of the pod listen, without the loopback interface."""
        address, ports = json.loads(self._python(_LISTENING))
        return {Target(self.pod, address, port) for port in ports}

    def resolve(self, host: str) -> str:
        """Return the IPv4 address of a host name. Raises KubectlFailed where DNS does not answer."""
        return self._python(_RESOLVE, host).strip()

    def _python(self, script: str, *arguments: str) -> str:
        return self.kubectl(
            "exec", "-n", self.namespace, self.pod, "--", "python", "-c", script, *arguments, timeout=60
        )


def listening_pod(name: str, node: str) -> Json:
    """Return a pod on `node` that accepts connections at LISTENER_PORT; probes can start in it.

    Its security context is that of the Pod Security level `restricted`."""
    ready = {"tcpSocket": {"port": LISTENER_PORT}, "periodSeconds": 1}
    main = {
        "name": "main",
        "image": HOST_BIND,
        "command": ["python", "-c", _LISTEN],
        "readinessProbe": ready,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "nodeName": node,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [main],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": spec,
    }


def start_listeners(kubectl: Kubectl, namespace: str, *pods: Json) -> list[Prober]:
    """Create pods of `listening_pod`, wait until they accept connections, and return them in order."""
    kubectl.apply(*pods, namespace=namespace)
    names = [pod["metadata"]["name"] for pod in pods]
    for name in names:
        kubectl.wait_for(f"pod/{name}", "condition=Ready", namespace=namespace)
    return [Prober(kubectl, namespace, name) for name in names]

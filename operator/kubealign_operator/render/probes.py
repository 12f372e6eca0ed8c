"""How the kubelet learns that a process serves, and that it hangs."""

from typing import Any

from kubealign.pod import HEALTH_PORT, NATS_PORT
from kubealign.process import Role
from kubealign.roles import Process

#: A large model is read from a slow volume within it.
START_SECONDS = 1800
_START_PERIOD = 2
#: A step may hold the interpreter for long, so one late answer is no sign.
_LIVENESS = {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 12}
_READINESS = {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3}


def probes(process: Process) -> dict[str, Any]:
    """The probes of its container; none for what ends by itself."""
    if process.one_shot:
        return {}
    ready, alive = _http("/readyz"), _http("/livez")
    if process.role is Role.NATS:
        ready = alive = {"tcpSocket": {"port": NATS_PORT}}
    return {
        # Until it has been ready once nothing else is asked, so that loading a model is no hang.
        "startupProbe": {
            **ready,
            "periodSeconds": _START_PERIOD,
            "timeoutSeconds": 5,
            "failureThreshold": START_SECONDS // _START_PERIOD,
        },
        "readinessProbe": {**ready, **_READINESS},
        "livenessProbe": {**alive, **_LIVENESS},
    }


def _http(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": HEALTH_PORT}}

"""Probes by which the kubelet detects that a process is ready, or hangs."""

from typing import Any

from kubealign.pod_contract import HEALTH_PORT, NATS_PORT
from kubealign.process_settings import Role
from kubealign.roles import Process

#: Long enough to load a large model from a slow volume.
START_SECONDS = 1800
_START_PERIOD = 2
#: A step may hold the interpreter for long, so one late answer does not count as a hang.
_LIVENESS = {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 12}
_READINESS = {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3}


def probes(process: Process) -> dict[str, Any]:
    """Return the probes of the process's container; none for a process that runs to completion."""
    if process.one_shot:
        return {}
    readiness, liveness = _http("/readyz"), _http("/livez")
    if process.role is Role.NATS:
        readiness = liveness = {"tcpSocket": {"port": NATS_PORT}}
    return {
        # The other probes start after the first success, so that loading a model does not count as a hang.
        "startupProbe": {
            **readiness,
            "periodSeconds": _START_PERIOD,
            "timeoutSeconds": 5,
            "failureThreshold": START_SECONDS // _START_PERIOD,
        },
        "readinessProbe": {**readiness, **_READINESS},
        "livenessProbe": {**liveness, **_LIVENESS},
    }


def _http(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": HEALTH_PORT}}

"""Argo CD's view of a job: the chart's health check, executed by a Lua 5.1 interpreter as in Argo CD."""

import functools
from pathlib import Path
from typing import Any, NamedTuple

from lupa import lua51

Json = dict[str, Any]

HEALTH_CHECK = Path(__file__).parents[2] / "charts" / "kubealign" / "argocd" / "health.lua"


class Combination(NamedTuple):
    """Parts of a status on which the health of a job depends, for the newest spec."""

    phase: str
    is_stalled: bool
    is_ready: bool


#: Health of every combination that the operator writes.
EXPECTED = {
    Combination("Pending", False, False): "Progressing",
    Combination("Pending", True, False): "Degraded",
    Combination("Starting", False, False): "Progressing",
    Combination("Running", False, True): "Healthy",
    # A process restarts.
    Combination("Running", False, False): "Progressing",
    # An operator that was upgraded meanwhile is stricter: the job goes on, and no change of it is acted on.
    Combination("Starting", True, False): "Degraded",
    Combination("Running", True, True): "Degraded",
    Combination("Running", True, False): "Degraded",
    Combination("Suspending", True, False): "Degraded",
    Combination("Suspended", True, False): "Degraded",
    Combination("Suspending", False, False): "Progressing",
    Combination("Suspended", False, False): "Suspended",
    Combination("Succeeded", False, True): "Healthy",
    # An earlier release wrote so.
    Combination("Succeeded", False, False): "Healthy",
    Combination("Failed", True, False): "Degraded",
}


def combination(status: Json) -> Combination:
    """Return the combination of a status that the operator has written."""
    conditions = {item["type"]: item["status"] for item in status.get("conditions", [])}
    return Combination(
        status["phase"], conditions.get("Stalled") == "True", conditions.get("Ready") == "True"
    )


class Health(NamedTuple):
    """Result of a health check."""

    status: str
    message: str


def health(job: Json) -> Health:
    """Execute the health check for a job."""
    lua, check = _interpreter()
    lua.globals().obj = lua.table_from(job, recursive=True)
    result = check()
    return Health(result.status, result.message)


@functools.cache
def _interpreter() -> tuple[Any, Any]:
    """Return an interpreter with the libraries that Argo CD opens, and the compiled check."""
    lua = lua51.LuaRuntime(register_eval=False, register_builtins=False)
    for library in ("io", "os", "package", "debug", "python", "require", "dofile", "loadfile"):
        lua.globals()[library] = None
    return lua, lua.compile(HEALTH_CHECK.read_text())

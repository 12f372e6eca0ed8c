"""Child process that runs the environments of a rollout worker.

Command line: `python -m kubealign_services.environments.child_main`.

Requests as in `child_requests`. First line to the child: the environment of the job's spec, of which one
could be created when the reply arrives. Requests: {"id": n, "session": s, "call": "open", "seed": n,
"columns": {name: value}}, {"id": n, "session": s, "call": "step", "action": text} and {"id": n, "session": s,
"call": "close"}.
"""

import sys
from functools import partial
from typing import Any

from kubealign.spec.workflows.environments import EnvironmentSpec
from kubealign_services.environments.child_requests import Handler, run_child
from kubealign_services.environments.factory import load_environment
from kubealign_services.environments.sessions import EnvironmentSessions


async def _open_handler(line: bytes) -> Handler:
    """Return the calls of the spec's environments. Raises EnvironmentFailed."""
    sessions = EnvironmentSessions(load_environment(EnvironmentSpec.model_validate_json(line)))
    await sessions.check()
    return partial(_call, sessions)


async def _call(sessions: EnvironmentSessions, request: dict[str, Any]) -> Any:
    if request["call"] == "open":
        return await sessions.open(request["session"], request["seed"], request["columns"])
    if request["call"] == "step":
        return await sessions.step(request["session"], request["action"])
    return await sessions.close(request["session"])


if __name__ == "__main__":
    sys.exit(run_child(_open_handler))

"""Address and token of a worker's endpoint for external agents."""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kubealign.local.run_dir.layout import RunDirectory, write_atomically
from kubealign.process_settings import ProcessSettings
from kubealign.spec.workflows.agents import ExternalAgents
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed

log = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class EndpointAddress:
    """Address at which a worker serves external agents.

    host, port: those to listen at; port 0: a free one. advertised_host: name for agents. file: JSON file
    that names the URL while the worker serves; None: none does.
    """

    host: str = _LOOPBACK
    port: int = 0
    advertised_host: str = _LOOPBACK
    file: Path | None = None

    @contextmanager
    def announce(self, port: int) -> Iterator[None]:
        """Write the URL to the log, and to the file until the block ends."""
        url = f"http://{self.advertised_host}:{port}"
        log.info("external agents take responses from %s/sessions", url)
        if self.file is None:
            yield
            return
        self.file.parent.mkdir(exist_ok=True)
        write_atomically(self.file, json.dumps({"url": url}) + "\n")
        try:
            yield
        finally:
            self.file.unlink(missing_ok=True)


def endpoint_address(settings: ProcessSettings, agents: ExternalAgents) -> EndpointAddress:
    """Return the address of the worker with these settings."""
    if settings.advertise is not None and settings.listen is not None:
        # The address of a pod follows from its name.
        host, advertised = (each.rpartition(":")[0] for each in (settings.listen, settings.advertise))
        return EndpointAddress(host, agents.pod_port, advertised)
    folder = RunDirectory(settings.run_dir).agents
    # Workers of one machine share its ports.
    port = 0 if agents.port is None else agents.port + int(settings.name.rpartition("-")[2])
    return EndpointAddress(_LOOPBACK, port, _LOOPBACK, folder / f"{settings.name}.json")


def read_agents_token(agents: ExternalAgents, variables: Mapping[str, str] = os.environ) -> str:
    """Return the token of the agents. Raises WorkflowFailed where the variable is not set."""
    token = variables.get(agents.token_variable)
    if not token:
        raise WorkflowFailed(
            f"spec.rollout.workflow.agent.external.tokenVariable: the environment variable "
            f"{agents.token_variable} is not set: set it before the job starts, or in a cluster in "
            "rollout.podTemplate, from a Secret"
        )
    return token

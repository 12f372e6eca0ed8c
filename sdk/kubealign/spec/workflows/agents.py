"""Agents that call the policy through the OpenAI API."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from kubealign.pod_contract import (
    AGENTS_PORT,
    GRPC_PORT,
    HEALTH_PORT,
    METRICS_PORT,
    NATS_MONITORING_PORT,
    NATS_PORT,
    RENDEZVOUS_PORT,
)
from kubealign.spec.base import (
    MAX_PROCESSES_PER_POD,
    MODULE_FUNCTION_PATTERN,
    PYTHON_NAME_PATTERN,
    SpecModel,
    SpecUnion,
    field_errors,
    require_exactly_one,
)
from kubealign.spec.sections.rewards import ConfigMapFunction, FileFunction
from kubealign.spec.workflows.tool_calls import EnvironmentVariable, ToolCallFormat

#: Places where an agent runs, exactly one of which is set.
AGENT_PLACES = ("function", "external")
#: Example of a place.
AGENT_EXAMPLE = "function: {file: {path: agent.py}}"

#: (first, last) port of kubealign's own servers in a pod.
RESERVED_PORTS = (
    (GRPC_PORT, GRPC_PORT + MAX_PROCESSES_PER_POD - 1),
    # The health of the pod, and of each of its processes.
    (HEALTH_PORT, HEALTH_PORT + MAX_PROCESSES_PER_POD),
    (NATS_PORT, NATS_PORT),
    (NATS_MONITORING_PORT, NATS_MONITORING_PORT),
    (METRICS_PORT, METRICS_PORT + MAX_PROCESSES_PER_POD - 1),
    (RENDEZVOUS_PORT, RENDEZVOUS_PORT),
)
#: Message for such a port.
RESERVED_PORT = "is a port of kubealign's own servers in a pod: choose none of " + ", ".join(
    f"{first}-{last}" if first != last else str(first) for first, last in RESERVED_PORTS
)
#: Highest port: workers of one machine have one port each, from this one.
_HIGHEST_PORT = 60_000

#: Values of `processes` and `concurrency` where none is set.
DEFAULT_PROCESSES, DEFAULT_CONCURRENCY = 1, 32
#: Message for processes of agents that run elsewhere.
EXTERNAL_HAVE_NO_PROCESSES = "external agents run in processes of their own: remove it"


class AgentFile(FileFunction):
    """A function in a Python file."""

    name: str = Field(
        "solve", pattern=PYTHON_NAME_PATTERN, max_length=253, description="Name of the function."
    )


class AgentConfigMap(ConfigMapFunction):
    """A function in a Python file that is stored in a ConfigMap of the job's namespace."""

    function: str = Field(
        "solve", pattern=PYTHON_NAME_PATTERN, max_length=253, description="Name of the function."
    )


class AgentFunction(SpecUnion):
    """A Python function `solve(client, row)`, plain or async, called for each response.

    It calls the policy at `client.base_url` and returns the reward, as `episode.reward` takes it, or None
    (`kubealign.agents`).
    """

    module: Annotated[str, Field(pattern=MODULE_FUNCTION_PATTERN, max_length=512)] | None = Field(
        None, description="package.module:function, importable in the rollout workers."
    )
    file: AgentFile | None = Field(None, description="A function in a Python file.")
    config_map: AgentConfigMap | None = Field(
        None, description="A function in a ConfigMap; only in a cluster."
    )


class OtherSampling(StrEnum):
    """Refuse: a request with another temperature or top_p than rollout.sampling's is an error.

    Override: the job's value applies, and the reply has a note.
    """

    REFUSE = "Refuse"
    OVERRIDE = "Override"


class ExternalAgents(SpecModel):
    """Agents outside the rollout workers, such as a service of the user's own.

    They take responses from `POST /sessions` of each worker's endpoint, call the policy with the key that
    they get, and post the reward (docs/agent-sessions.openapi.yaml).
    """

    token_variable: EnvironmentVariable = Field(
        description="Environment variable of the rollout workers with the token that agents send as a bearer "
        "token; in a cluster from a Secret, by rollout.podTemplate."
    )
    port: Annotated[int, Field(ge=1024, le=_HIGHEST_PORT)] | None = Field(
        None,
        description=f"Port of the endpoint. In a cluster of each worker's pod; null: {AGENTS_PORT}. On one "
        "machine of the first worker, on loopback; those of further workers follow. null: free ones, which "
        "the files RUN/agents/WORKER.json name.",
    )
    session_timeout_seconds: float = Field(
        60.0,
        gt=0,
        description="Time after which a response fails whose agent neither calls the policy nor sends a "
        "heartbeat.",
    )

    @property
    def pod_port(self) -> int:
        """Port of the endpoint in a worker's pod."""
        return AGENTS_PORT if self.port is None else self.port

    @model_validator(mode="after")
    def _free_port(self) -> "ExternalAgents":
        """Check that no other server of a pod has the port."""
        if self.port is not None and any(first <= self.port <= last for first, last in RESERVED_PORTS):
            raise field_errors("ExternalAgents", (("port",), self.port, RESERVED_PORT))
        return self


class AgentSpec(SpecModel):
    """An agent of each response, which calls the policy through the OpenAI API of its rollout worker.

    A request whose conversation continues an earlier one is another turn of the same sequence; any other
    begins a sequence (maxSequencesPerSample).
    """

    function: AgentFunction | None = Field(None, description="The agent, which the rollout workers run.")
    external: ExternalAgents | None = Field(None, description="Agents that run elsewhere.")
    parser: ToolCallFormat = Field(
        ToolCallFormat.AUTO, description="Format of the tool calls, for requests with tools."
    )
    other_sampling: OtherSampling = Field(
        OtherSampling.REFUSE,
        description="Answer to requests with another temperature or top_p than rollout.sampling's.",
    )
    timeout_seconds: float = Field(300.0, gt=0, description="Time limit of an agent for each response.")
    processes: int = Field(
        DEFAULT_PROCESSES,
        ge=1,
        le=256,
        description="Processes of each rollout worker that run agents. One that is lost fails its own "
        "responses, and is replaced.",
    )
    concurrency: int = Field(
        DEFAULT_CONCURRENCY,
        ge=1,
        le=4096,
        description="Agents that run at once in each process; others wait.",
    )

    @model_validator(mode="after")
    def _one_place(self) -> "AgentSpec":
        """Check that exactly one place is set, and that no process is described that does not exist."""
        require_exactly_one(self, list(AGENT_PLACES), AGENT_EXAMPLE)
        if self.external is not None:
            defaults = {"processes": DEFAULT_PROCESSES, "concurrency": DEFAULT_CONCURRENCY}
            problems = [
                ((name,), getattr(self, name), EXTERNAL_HAVE_NO_PROCESSES)
                for name, default in defaults.items()
                if getattr(self, name) != default
            ]
            if problems:
                raise field_errors("Agent", *problems)
        return self

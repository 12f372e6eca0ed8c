"""Agents that call the policy through the OpenAI API."""

from enum import StrEnum
from typing import Annotated, Any

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
    FilePath,
    ShortText,
    SpecModel,
    SpecUnion,
    field_errors,
    require_exactly_one,
)
from kubealign.spec.sections.rewards import ConfigMapFunction, FileFunction
from kubealign.spec.workflows.tool_calls import EnvironmentVariable, ToolCallFormat

#: Fields of `AgentSpec`, exactly one of which is set.
AGENT_KINDS = ("function", "verifiers", "external")
#: Example of one.
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


#: Messages for fields of the configuration that other fields, or the job, set.
TASKSET_IS_NAMED = "verifiers.taskset names the taskset: remove it"
GROUPS_ARE_RETRIED = (
    "the turns of a failed attempt would be trained on with those of its retry: remove it; the job retries "
    "groups (rollout.groupRetries)"
)


class VerifiersEnvironment(SpecModel):
    """An environment of the package verifiers 0.4, which runs its own rollouts with the policy as the model.

    Exactly one agent of the environment is the policy: one without a client of its own.
    """

    taskset: ShortText = Field(
        description="Name of the taskset, such as gsm8k-v1: an installed package, or a module in folder."
    )
    folder: FilePath | None = Field(
        None,
        description="Folder with Python modules of the job's own, such as the taskset; relative to the job's "
        "file on one machine. null: none.",
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        max_length=256,
        description="Configuration of the environment, with the names of verifiers' table [env], such as "
        "{taskset: {split: train}, agent: {max_turns: 4}}. Agents that it gives no harness and no runtime "
        "run the harness of the taskset, else the chat loop null, as processes of the rollout worker.",
    )

    @model_validator(mode="after")
    def _coherent(self) -> "VerifiersEnvironment":
        """Check that the configuration names no other taskset, and retries nothing."""
        problems = [
            (("config", *path), value, message)
            for path, value, message in (
                (("taskset", "id"), _find(self.config, "taskset", "id"), TASKSET_IS_NAMED),
                (("retries",), self.config.get("retries"), GROUPS_ARE_RETRIED),
                *(
                    ((name, "retries"), _find(self.config, name, "retries"), GROUPS_ARE_RETRIED)
                    for name in self.config
                    if name != "taskset"
                ),
            )
            if value is not None
        ]
        if problems:
            raise field_errors("Verifiers", *problems)
        return self


def _find(config: dict[str, Any], section: str, name: str) -> Any:
    """Return a field of a section; None where either is missing."""
    values = config.get(section)
    return values.get(name) if isinstance(values, dict) else None


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
    """An agent of each response, which calls the policy through the OpenAI API of its rollout worker:
    exactly one of function, verifiers and external.

    A request whose conversation continues an earlier one is another turn of the same sequence; any other
    begins a sequence (maxSequencesPerSample).
    """

    function: AgentFunction | None = Field(
        None, description="A Python function, which the rollout workers run."
    )
    verifiers: VerifiersEnvironment | None = Field(
        None, description="An environment of the package verifiers, which the rollout workers run."
    )
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
    def _one_agent(self) -> "AgentSpec":
        """Check that exactly one agent is set, and that no process is described that does not exist."""
        require_exactly_one(self, list(AGENT_KINDS), AGENT_EXAMPLE)
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

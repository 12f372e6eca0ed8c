"""Agents that call the policy through the OpenAI API."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from kubealign.spec.base import MODULE_FUNCTION_PATTERN, PYTHON_NAME_PATTERN, SpecModel, SpecUnion
from kubealign.spec.sections.rewards import ConfigMapFunction, FileFunction
from kubealign.spec.workflows.tool_calls import ToolCallFormat


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
    (`kubealign_services.agents`).
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


class AgentSpec(SpecModel):
    """An agent of each response, which calls the policy through the OpenAI API of its rollout worker.

    A request whose conversation continues an earlier one is another turn of the same sequence; any other
    begins a sequence (maxSequencesPerSample).
    """

    function: AgentFunction = Field(description="The agent.")
    parser: ToolCallFormat = Field(
        ToolCallFormat.AUTO, description="Format of the tool calls, for requests with tools."
    )
    other_sampling: OtherSampling = Field(
        OtherSampling.REFUSE,
        description="Answer to requests with another temperature or top_p than rollout.sampling's.",
    )
    timeout_seconds: float = Field(300.0, gt=0, description="Time limit of an agent.")
    processes: int = Field(
        1,
        ge=1,
        le=256,
        description="Processes of each rollout worker that run agents. One that is lost fails its own "
        "responses, and is replaced.",
    )
    concurrency: int = Field(
        32, ge=1, le=4096, description="Agents that run at once in each process; others wait."
    )

"""Multi-turn responses: tool use and custom workflows."""

import re
from typing import Annotated, TypeAlias

from pydantic import Field, model_validator

from kubealign.spec.base import (
    MAX_INT32,
    MODULE_FUNCTION_PATTERN,
    PYTHON_NAME_PATTERN,
    ShortText,
    SpecModel,
    SpecUnion,
    field_errors,
    unique_by,
)
from kubealign.spec.sections.rewards import ConfigMapFunction, FileFunction
from kubealign.spec.workflows.agents import AgentFunction, AgentSpec, ExternalAgents
from kubealign.spec.workflows.environments import EnvironmentFunction, EnvironmentSpec
from kubealign.spec.workflows.tool_calls import ToolCallsSpec
from kubealign.spec.workflows.tool_functions import ToolFunction


class WorkflowFile(FileFunction):
    """A function in a Python file."""

    name: str = Field(
        "workflow", pattern=PYTHON_NAME_PATTERN, max_length=253, description="Name of the function."
    )


class WorkflowConfigMap(ConfigMapFunction):
    """A function in a Python file that is stored in a ConfigMap of the job's namespace."""

    function: str = Field(
        "workflow", pattern=PYTHON_NAME_PATTERN, max_length=253, description="Name of the function."
    )


class WorkflowFunction(SpecUnion):
    """A Python function `async def f(episode)`, called for each response.

    The function lets the policy generate and inserts the environment's text
    (`kubealign_services.roles.rollout.workflow.episode.Episode`). It runs in the rollout worker's process, in
    one thread for all responses, and is cancelled at the deadline of its prompt.
    """

    module: Annotated[str, Field(pattern=MODULE_FUNCTION_PATTERN, max_length=512)] | None = Field(
        None, description="package.module:function, importable in the rollout workers."
    )
    file: WorkflowFile | None = Field(None, description="A function in a Python file.")
    config_map: WorkflowConfigMap | None = Field(
        None, description="A function in a ConfigMap; only in a cluster."
    )


#: Function that rollout workers call.
WorkerFunction: TypeAlias = ToolFunction | WorkflowFunction | EnvironmentFunction | AgentFunction


class ToolSpec(SpecModel):
    """A tool that the policy can call."""

    name: str = Field(pattern=PYTHON_NAME_PATTERN, max_length=64, description="Name of the tool in calls.")
    function: ToolFunction = Field(description="Function that answers the call.")
    timeout_seconds: float = Field(
        10.0, gt=0, description="Timeout of a call, after which the answer is an error."
    )


class ToolUseSpec(SpecModel):
    """Tool calls of the policy within a response.

    A call ends with `end`; the tool's answer is appended, and generation continues. Answers are excluded
    from the loss. maxTokens limits calls and answers together.
    """

    tools: Annotated[list[ToolSpec], unique_by("name")] = Field(
        min_length=1, max_length=64, description="Available tools."
    )
    end: ShortText = Field("</tool>", description="Stop string that ends a call.")
    pattern: str = Field(
        r"<tool>(?:(?P<name>\w+):)?(?P<argument>.*)</tool>$",
        min_length=1,
        max_length=1024,
        description="Regular expression of a call, with a group argument, and a group name if there are "
        "several tools. It is searched in the text generated since the last answer; without "
        "a match the response ends.",
    )
    answer: str = Field(
        "<result>{result}</result>",
        min_length=1,
        max_length=16384,
        description="Text appended after a call, with the placeholder {result}: the tool's answer or error.",
    )
    max_calls: int = Field(
        4,
        ge=1,
        le=MAX_INT32,
        description="Maximum number of calls; a response with more calls ends after the last allowed one.",
    )

    @model_validator(mode="after")
    def _readable(self) -> "ToolUseSpec":
        """Check the placeholders of the answer and the groups of the pattern."""
        problems = [(("pattern",), self.pattern, problem)] if (problem := self._pattern_problem()) else []
        if "{result}" not in self.answer:
            problems.append(
                (("answer",), self.answer, "must have {result} in it, which is replaced by the answer")
            )
        if problems:
            raise field_errors("ToolUse", *problems)
        return self

    def _pattern_problem(self) -> str | None:
        """Return the error in the pattern; None: the pattern is valid."""
        try:
            groups = re.compile(self.pattern).groupindex
        except re.error as error:
            return f"is not a regular expression: {error}"
        if "argument" not in groups:
            return "must have a group argument, (?P<argument>...): the tool's input"
        if len(self.tools) > 1 and "name" not in groups:
            return "must have a group name, (?P<name>...): there are several tools"
        return None


class WorkflowSpec(SpecUnion):
    """Workflow that produces a multi-turn response."""

    tools: ToolUseSpec | None = Field(
        None, description="Tool calls of the policy as text, in a format of the job's."
    )
    tool_calls: ToolCallsSpec | None = Field(
        None, description="Tool calls of the policy in its model's own format."
    )
    function: WorkflowFunction | None = Field(None, description="A custom function.")
    environment: EnvironmentSpec | None = Field(
        None, description="An environment that answers the policy's turns and rewards them."
    )
    agent: AgentSpec | None = Field(
        None, description="An agent that calls the policy through the OpenAI API, and rewards itself."
    )

    @property
    def external_agents(self) -> ExternalAgents | None:
        """Agents outside the rollout workers, if any."""
        return None if self.agent is None else self.agent.external

    @property
    def can_branch(self) -> bool:
        """True if the workflow can begin further sequences of a response."""
        return self.function is not None or self.agent is not None

    @property
    def gives_rewards(self) -> bool:
        """True if the workflow can give its response a reward."""
        return self.function is not None or self.environment is not None or self.agent is not None

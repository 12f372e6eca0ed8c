"""Responses of several turns: tools that the policy calls, or a workflow of one's own."""

import re
from typing import Annotated

from pydantic import Field, model_validator

from kubealign.spec.base import (
    MODULE_FUNCTION,
    MOST,
    PYTHON_NAME,
    ShortText,
    Spec,
    Union,
    incoherent,
    unique,
)
from kubealign.spec.rewards import ConfigMapFunction, FileFunction


class ToolFile(FileFunction):
    """A function in a Python file."""

    name: str = Field("tool", pattern=PYTHON_NAME, max_length=253, description="The function in it.")


class ToolConfigMap(ConfigMapFunction):
    """A function in a Python file that a ConfigMap of the job's namespace holds."""

    function: str = Field("tool", pattern=PYTHON_NAME, max_length=253, description="The function in it.")


class ToolFunction(Union):
    """A Python function `f(argument) -> answer`, text to text, in a process of its own."""

    module: Annotated[str, Field(pattern=MODULE_FUNCTION, max_length=512)] | None = Field(
        None, description="package.module:function, importable where the rollout workers run."
    )
    file: ToolFile | None = Field(None, description="A function in a Python file.")
    config_map: ToolConfigMap | None = Field(
        None, description="A function in a ConfigMap; only in a cluster."
    )


class WorkflowFile(FileFunction):
    """A function in a Python file."""

    name: str = Field("workflow", pattern=PYTHON_NAME, max_length=253, description="The function in it.")


class WorkflowConfigMap(ConfigMapFunction):
    """A function in a Python file that a ConfigMap of the job's namespace holds."""

    function: str = Field("workflow", pattern=PYTHON_NAME, max_length=253, description="The function in it.")


class WorkflowFunction(Union):
    """A Python function `async def f(episode)`, called for each response: it has the policy generate, and
    puts the environment's text between (`kubealign_services.rollout.workflow.episode.Episode`). It runs in
    the rollout worker's own process."""

    module: Annotated[str, Field(pattern=MODULE_FUNCTION, max_length=512)] | None = Field(
        None, description="package.module:function, importable where the rollout workers run."
    )
    file: WorkflowFile | None = Field(None, description="A function in a Python file.")
    config_map: WorkflowConfigMap | None = Field(
        None, description="A function in a ConfigMap; only in a cluster."
    )


class Tool(Spec):
    """Something that the policy can ask."""

    name: str = Field(pattern=PYTHON_NAME, max_length=64, description="What a call names it by.")
    function: ToolFunction = Field(description="What answers.")
    timeout_seconds: float = Field(
        10.0, gt=0, description="A call that has not been answered by then is answered with an error."
    )


class ToolUse(Spec):
    """The policy calls tools within its response. A call ends with `end`; the answer is put behind it, and
    the policy goes on. What a tool answers is not learned. maxTokens is of calls and answers together."""

    tools: Annotated[list[Tool], unique("name")] = Field(
        min_length=1, max_length=64, description="The tools that there are."
    )
    end: ShortText = Field("</tool>", description="What ends a call.")
    pattern: str = Field(
        r"<tool>(?:(?P<name>\w+):)?(?P<argument>.*)</tool>$",
        min_length=1,
        max_length=1024,
        description="A regular expression with a group argument, and name where there are several tools, "
        "searched in what was generated since the last answer. Where it does not match, the response ends.",
    )
    answer: str = Field(
        "<result>{result}</result>",
        min_length=1,
        max_length=16384,
        description="What is put behind a call, with {result} in it: the tool's answer, or what went wrong.",
    )
    max_calls: int = Field(4, ge=1, le=MOST, description="A response with more calls ends after this one.")

    @model_validator(mode="after")
    def _readable(self) -> "ToolUse":
        problems = [(("pattern",), self.pattern, told)] if (told := self._pattern_problem()) else []
        if "{result}" not in self.answer:
            problems.append((("answer",), self.answer, "must have {result} in it, where the answer stands"))
        if problems:
            raise incoherent("ToolUse", *problems)
        return self

    def _pattern_problem(self) -> str | None:
        try:
            groups = re.compile(self.pattern).groupindex
        except re.error as error:
            return f"is no regular expression: {error}"
        if "argument" not in groups:
            return "must have a group argument, (?P<argument>...): what the tool is given"
        if len(self.tools) > 1 and "name" not in groups:
            return "must have a group name, (?P<name>...): there are several tools"
        return None


class Workflow(Union):
    """How a response comes about, where it is not generated at once."""

    tools: ToolUse | None = Field(None, description="The policy calls tools.")
    function: WorkflowFunction | None = Field(None, description="A function of one's own.")

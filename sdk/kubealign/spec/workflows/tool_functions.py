"""Python functions that the policy calls as tools."""

from typing import Annotated

from pydantic import Field

from kubealign.spec.base import MODULE_FUNCTION_PATTERN, PYTHON_NAME_PATTERN, SpecUnion
from kubealign.spec.sections.rewards import ConfigMapFunction, FileFunction


class ToolFile(FileFunction):
    """A function in a Python file."""

    name: str = Field(
        "tool", pattern=PYTHON_NAME_PATTERN, max_length=253, description="Name of the function."
    )


class ToolConfigMap(ConfigMapFunction):
    """A function in a Python file that is stored in a ConfigMap of the job's namespace."""

    function: str = Field(
        "tool", pattern=PYTHON_NAME_PATTERN, max_length=253, description="Name of the function."
    )


class ToolFunction(SpecUnion):
    """A Python function in a process of its own.

    For `tools` it is `f(argument) -> answer`, text to text; for `toolCalls` it has typed arguments.
    """

    module: Annotated[str, Field(pattern=MODULE_FUNCTION_PATTERN, max_length=512)] | None = Field(
        None, description="package.module:function, importable in the rollout workers."
    )
    file: ToolFile | None = Field(None, description="A function in a Python file.")
    config_map: ToolConfigMap | None = Field(
        None, description="A function in a ConfigMap; only in a cluster."
    )

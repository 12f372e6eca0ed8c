"""CEL rules of tool calls in the model's own format, as `kubealign.spec.workflows.tool_call_checks`.

Variables of chat templates are compared when the job is read.
"""

from collections.abc import Iterator

from kubealign.spec.workflows.tool_call_checks import TOOLS_NEED_CHAT, TOOLS_OF_ROWS
from kubealign.spec.workflows.tool_calls import NO_TOOLS, ONE_PARSER, ToolCallFormat
from kubealign_operator.crd.cel import CelRule, cel_string, implies

_CALLS_TOOLS = "has(self.rollout.workflow) && has(self.rollout.workflow.toolCalls)"


def tool_calls_rules() -> list[CelRule]:
    """Return the rules of `rollout.workflow.toolCalls`."""
    auto = cel_string(ToolCallFormat.AUTO)
    return [
        CelRule("self.tools.size() > 0 || self.mcpServers.size() > 0", NO_TOOLS, field_path=".tools"),
        CelRule(f"!has(self.parserPlugin) || self.parser == {auto}", ONE_PARSER, field_path=".parser"),
    ]


def tool_call_rules() -> Iterator[CelRule]:
    """Yield the rules of the whole spec."""
    for data, is_set in (
        ("data", _CALLS_TOOLS),
        ("validation.data", f"{_CALLS_TOOLS} && has(self.validation) && has(self.validation.data)"),
    ):
        prompts = f"self.{data}.prompts"
        chat = f"{prompts}.format.chat"
        yield CelRule(
            implies(f"{is_set} && has({prompts})", f"(has({prompts}.format) && has({chat}))"),
            TOOLS_NEED_CHAT,
            field_path=f".{data}.prompts.format",
        )
        yield CelRule(
            implies(
                f"{is_set} && has({prompts}) && has({prompts}.format) && has({chat})", f"!has({chat}.tools)"
            ),
            TOOLS_OF_ROWS,
            field_path=f".{data}.prompts.format.chat.tools",
        )
    fits = "has(s.data.prompts.format) && has(s.data.prompts.format.chat)"
    yield CelRule(
        implies(
            f"{_CALLS_TOOLS} && has(self.validation)",
            f"self.validation.sets.all(s, !has(s.data) || !has(s.data.prompts) || ({fits}))",
        ),
        TOOLS_NEED_CHAT,
        field_path=".validation.sets",
    )

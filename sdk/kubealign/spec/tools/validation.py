"""Rules of tool calls in the model's own format, which span several fields of a spec."""

from collections.abc import Iterator
from typing import Any

from kubealign.spec.paths import DocumentPath
from kubealign.spec.sections.data import Data
from kubealign.spec.sections.rollout import Rollout
from kubealign.spec.sections.validation import Validation

#: Messages for prompts that cannot carry the tools.
TOOLS_NEED_CHAT = (
    "the chat template writes the tools of rollout.workflow.toolCalls into the prompts: set format.chat, or "
    "use rollout.workflow.tools"
)
TOOLS_OF_ROWS = "rollout.workflow.toolCalls gives every row its tools: remove it"
#: Message for validation prompts whose chat template has other variables.
OTHER_TEMPLATE_KWARGS = (
    "differs from data.prompts.format.chat.chatTemplateKwargs, with which rollout.workflow.toolCalls renders "
    "the results of tools: write the same"
)


def check_tool_calls(
    rollout: Rollout, data: Data, validation: Validation | None
) -> Iterator[tuple[DocumentPath, Any, str]]:
    """Yield the errors of prompts that cannot carry the tools."""
    if rollout.tool_calls is None:
        return
    yield from _check_prompts(data, ("data",))
    if validation is None:
        return
    yield from _check_prompts(validation.data, ("validation", "data"))
    prompts, held_out = data.prompts, validation.data.prompts
    if prompts is None or held_out is None or None in (prompts.format.chat, held_out.format.chat):
        return
    assert prompts.format.chat is not None and held_out.format.chat is not None
    variables = held_out.format.chat.chat_template_kwargs
    if variables != prompts.format.chat.chat_template_kwargs:
        path = ("validation", "data", "prompts", "format", "chat", "chatTemplateKwargs")
        yield path, variables, OTHER_TEMPLATE_KWARGS


def _check_prompts(data: Data, path: DocumentPath) -> Iterator[tuple[DocumentPath, Any, str]]:
    if data.prompts is None:
        return
    row_format = data.prompts.format
    path = (*path, "prompts", "format")
    if row_format.chat is None:
        yield path, row_format, TOOLS_NEED_CHAT
    elif row_format.chat.tools is not None:
        yield (*path, "chat", "tools"), row_format.chat.tools, TOOLS_OF_ROWS

"""Rules of tool calls in the model's own format, which span several fields of a spec."""

from collections.abc import Iterator
from typing import Any

from kubealign.spec.held_out_rows import list_held_out_rows
from kubealign.spec.paths import DocumentPath
from kubealign.spec.sections.data import Data, PromptMessages
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
    yield from _check_prompts(data, ("data", "prompts"))
    for rows in list_held_out_rows(validation):
        yield from _check_prompts(rows.data, rows.rows_path)
        own, held_out = _chat_format(data), _chat_format(rows.data)
        if own is None or held_out is None or own.chat_template_kwargs == held_out.chat_template_kwargs:
            continue
        field = () if rows.is_preset else ("format", "chat", "chatTemplateKwargs")
        yield (*rows.rows_path, *field), held_out.chat_template_kwargs, OTHER_TEMPLATE_KWARGS


def _chat_format(data: Data) -> PromptMessages | None:
    return None if data.prompts is None else data.prompts.format.chat


def _check_prompts(data: Data, path: DocumentPath) -> Iterator[tuple[DocumentPath, Any, str]]:
    if data.prompts is None:
        return
    row_format = data.prompts.format
    if row_format.chat is None:
        yield (*path, "format"), row_format, TOOLS_NEED_CHAT
    elif row_format.chat.tools is not None:
        yield (*path, "format", "chat", "tools"), row_format.chat.tools, TOOLS_OF_ROWS

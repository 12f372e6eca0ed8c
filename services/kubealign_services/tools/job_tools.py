"""Tools of a job: listed and checked when it is prepared, loaded by its workers."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from kubealign.spec.job import AlignmentJob
from kubealign.spec.workflows.tool_calls import ToolCallsSpec
from kubealign_services.data.prepared_files import FOLDER
from kubealign_services.data.rows.field_mapping import chat_template_kwargs
from kubealign_services.data.tokenization.tool_turns import ToolTurns
from kubealign_services.tools.catalog import CatalogTool, list_tools, read_catalog
from kubealign_services.tools.parsers.registry import make_parser


@dataclass(frozen=True)
class JobTools:
    """Tools with the way in which the chat template renders them. variables: those of the template."""

    spec: ToolCallsSpec
    catalog: Sequence[CatalogTool]
    variables: Mapping[str, Any] = field(default_factory=dict)

    def make_turns(self, tokenizer: PreTrainedTokenizerBase) -> ToolTurns:
        """Return the renderer of results. Raises DataError where the template does not take the tools."""
        schemas = [tool.schema for tool in self.catalog]
        return ToolTurns(tokenizer, schemas, self.variables, is_parallel=self.spec.parallel_calls)


def prepare_tools(job: AlignmentJob, tokenizer: PreTrainedTokenizerBase) -> list[CatalogTool]:
    """List the tools of a job and check that its chat template takes them, and that its calls can be read;
    none where the policy calls no tools in its model's own format.

    Raises:
        DataError: A tool, the template or the parser cannot be used.
    """
    rollout = job.spec.effective_rollout
    if rollout is None or rollout.tool_calls is None:
        return []
    catalog = asyncio.run(list_tools(rollout.tool_calls))
    tools = JobTools(rollout.tool_calls, catalog, chat_template_kwargs(job.spec.data.value))
    make_parser(rollout.tool_calls, tools.make_turns(tokenizer))
    return catalog


def load_tools(job: AlignmentJob, run_dir: Path) -> JobTools | None:
    """Load the tools of a prepared job; None where it has none. Raises DataError."""
    rollout = job.spec.effective_rollout
    if rollout is None or rollout.tool_calls is None:
        return None
    catalog = read_catalog(run_dir / FOLDER)
    return JobTools(rollout.tool_calls, catalog, chat_template_kwargs(job.spec.data.value))

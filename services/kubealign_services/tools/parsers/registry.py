"""Choice of the parser: by name, by the chat template, or of a plugin."""

from kubealign.spec.workflows.tool_calls import ToolCallFormat, ToolCallsSpec
from kubealign_services.data.errors import DataError
from kubealign_services.data.tokenization.tool_turns import ToolTurns
from kubealign_services.runtime.plugins import (
    TOOL_CALL_PARSERS,
    PluginError,
    instantiate,
    load_entry_point,
)
from kubealign_services.tools.parsers.contract import ToolCall, ToolCallParser
from kubealign_services.tools.parsers.hermes import HermesParser
from kubealign_services.tools.parsers.llama3 import Llama3Parser
from kubealign_services.tools.parsers.mistral import MistralParser
from kubealign_services.tools.parsers.pythonic import PythonicParser

#: Format -> its parser.
PARSERS: dict[ToolCallFormat, type[ToolCallParser]] = {
    ToolCallFormat.HERMES: HermesParser,
    ToolCallFormat.LLAMA3: Llama3Parser,
    ToolCallFormat.MISTRAL: MistralParser,
    ToolCallFormat.PYTHONIC: PythonicParser,
}

_FIELD = "spec.rollout.workflow.toolCalls"


def make_parser(spec: ToolCallsSpec, turns: ToolTurns) -> ToolCallParser:
    """Return the parser of a job.

    Raises:
        DataError: No format, or more than one, reads the calls that the chat template writes (Auto), or the
            plugin cannot be used.
    """
    if spec.parser_plugin is not None:
        path = f"{_FIELD}.parserPlugin"
        try:
            create = load_entry_point(TOOL_CALL_PARSERS, spec.parser_plugin, path)
            parser: ToolCallParser = instantiate(create, path)
        except PluginError as error:
            raise DataError(str(error)) from error
        if not callable(getattr(parser, "parse", None)):
            raise DataError(f"{path}: {spec.parser_plugin} returned {parser!r}, which has no method parse")
        return parser
    if spec.parser is not ToolCallFormat.AUTO:
        return PARSERS[spec.parser]()
    return PARSERS[detect_format(turns)]()


def detect_format(turns: ToolTurns) -> ToolCallFormat:
    """Return the format that reads a call as the chat template writes it.

    Raises:
        DataError: There is none, or more than one.
    """
    text, name, arguments = turns.example_turn()
    formats = [
        format_ for format_, parser in PARSERS.items() if parser().parse(text) == [ToolCall(name, arguments)]
    ]
    if len(formats) == 1:
        return formats[0]
    names = ", ".join(sorted({*PARSERS} - {ToolCallFormat.AUTO}))
    readers = " and ".join(formats) or "none of the formats"
    raise DataError(
        f"{_FIELD}.parser: is Auto, and {readers} can read a call as the chat template writes it, {text!r}: "
        f"write the model's format, {names}, or set parserPlugin"
    )

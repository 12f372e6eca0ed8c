"""Calls of Mistral's models: [TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}], and since version 11 of
the tokenizer [TOOL_CALLS]add[ARGS]{"a": 1} for each call.
"""

import re

from kubealign_services.tools.parsers.contract import InvalidCall, ParsedCall
from kubealign_services.tools.parsers.json_calls import not_json, read_json, skip_space, to_call

_TAG = "[TOOL_CALLS]"
# The name, an identifier that some versions write after it, and a token before the arguments.
_NAMED = re.compile(r"([\w.\-]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*")


class MistralParser:
    """Parses both forms; text before the first tag is content."""

    def parse(self, text: str) -> list[ParsedCall]:
        calls: list[ParsedCall] = []
        position = text.find(_TAG)
        while position >= 0:
            more, position = _read_calls(text, skip_space(text, position + len(_TAG)))
            calls += more
            position = text.find(_TAG, position)
        return calls


def _read_calls(text: str, start: int) -> tuple[list[ParsedCall], int]:
    """Return (calls after a tag, position after them)."""
    named = _NAMED.match(text, start)
    try:
        document, end = read_json(text, start if named is None else named.end())
    except ValueError as error:
        return [not_json(error)], start
    if named is not None:
        return [to_call({"name": named[1], "arguments": document})], end
    documents = document if isinstance(document, list) else [document]
    if not documents:
        return [InvalidCall("the list of calls is empty")], end
    return [to_call(one) for one in documents], end

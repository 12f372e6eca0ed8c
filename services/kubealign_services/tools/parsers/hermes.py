"""Calls between <tool_call> tags, as Hermes 2 Pro, Qwen 2.5 and Qwen 3 write them:
<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>.
"""

from kubealign_services.tools.parsers.contract import InvalidCall, ParsedCall
from kubealign_services.tools.parsers.json_calls import not_json, read_json, skip_space, to_call

_START, _END = "<tool_call>", "</tool_call>"


class HermesParser:
    """Parses calls between tags. The last end tag may be missing."""

    def parse(self, text: str) -> list[ParsedCall]:
        calls: list[ParsedCall] = []
        position = text.find(_START)
        while position >= 0:
            call, position = _read_call(text, position + len(_START))
            calls.append(call)
            position = text.find(_START, position)
        return calls


def _read_call(text: str, start: int) -> tuple[ParsedCall, int]:
    """Return (call after a start tag, position after it)."""
    try:
        document, end = read_json(text, skip_space(text, start))
    except ValueError as error:
        return not_json(error), _after_end_tag(text, start)
    end = skip_space(text, end)
    if end < len(text) and not text.startswith(_END, end):
        return InvalidCall(f"{_END} must follow the JSON object of a call"), _after_end_tag(text, end)
    return to_call(document), end


def _after_end_tag(text: str, start: int) -> int:
    end = text.find(_END, start)
    return len(text) if end < 0 else end + len(_END)

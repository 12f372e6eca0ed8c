"""Tool calls in texts as vLLM's parsers read them. Runs in vLLM's environment.

Input: JSON, [[format, text]]. Output: the last line, JSON: for each text [[name, arguments]]
of its calls.
"""

import json
import logging
import sys
from typing import Any

from support.chat_templates import FAMILIES

#: Format -> (parser of vLLM, special tokens of the tokenizer, by which it tells versions of a format).
_PARSERS: dict[str, tuple[str, list[str]]] = {
    "hermes": ("hermes", []),
    "llama3": ("llama3_json", ["<|python_tag|>"]),
    "mistral": ("mistral", ["[TOOL_CALLS]"]),
    "mistral-v11": ("mistral", ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"]),
    "pythonic": ("pythonic", []),
}


def main() -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    logging.disable(logging.CRITICAL)
    request = ChatCompletionRequest(
        model="model", messages=[{"role": "user", "content": "x"}], tools=None, tool_choice="none"
    )
    results = []
    for name, text in json.loads(sys.stdin.read()):
        tokenizer = FAMILIES["qwen25"].tokenizer()
        parser_name, tokens = _PARSERS[name]
        tokenizer.add_tokens(tokens, special_tokens=True)
        parser = ToolParserManager.get_tool_parser(parser_name)(tokenizer)
        extracted = parser.extract_tool_calls(text, request)
        results.append([_call(call) for call in extracted.tool_calls])
    print(json.dumps(results))


def _call(call: Any) -> tuple[str, Any]:
    return call.function.name, json.loads(call.function.arguments)

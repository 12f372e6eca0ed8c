"""Replies of the OpenAI API: objects, and the chunks of a stream."""

import json
import math
import time
from collections.abc import Iterator
from typing import Any

from kubealign_services.generation.contract import FinishReason
from kubealign_services.roles.rollout.agents.requests import ChatRequest, TextRequest
from kubealign_services.roles.rollout.agents.session import Answer

#: Name of the policy in requests and replies.
MODEL = "policy"

#: Least log-probability of a reply: JSON has no infinity.
_LEAST_LOGPROB = -9999.0


def model_list() -> dict[str, Any]:
    """Return the reply of /v1/models."""
    return {
        "object": "list",
        "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "kubealign"}],
    }


def chat_reply(request: ChatRequest, answer: Answer) -> dict[str, Any]:
    """Return the reply to a chat request."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if answer.calls else answer.text,
        "refusal": None,
    }
    if answer.calls:
        message["tool_calls"] = list(answer.calls)
    choice = _choice({"message": message}, _finish(answer), _chat_logprobs(request, answer))
    return _envelope("chat.completion", answer, [choice]) | {"usage": _usage(answer)}


def text_reply(request: TextRequest, answer: Answer) -> dict[str, Any]:
    """Return the reply to a request for a completion."""
    choice = _choice({"text": answer.text}, _finish(answer), _text_logprobs(request, answer))
    return _envelope("text_completion", answer, [choice]) | {"usage": _usage(answer)}


def chat_chunks(request: ChatRequest, answer: Answer) -> Iterator[bytes]:
    """Yield the server-sent events of a chat reply: its role, its content or calls, its end, its usage."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None if answer.calls else ""}]
    if answer.calls:
        deltas.append({"tool_calls": [call | {"index": i} for i, call in enumerate(answer.calls)]})
    else:
        deltas.append({"content": answer.text})
    choices = [_choice({"delta": delta}, None, None) for delta in deltas]
    choices[-1]["logprobs"] = _chat_logprobs(request, answer)
    choices.append(_choice({"delta": {}}, _finish(answer), None))
    yield from _events("chat.completion.chunk", request, answer, choices)


def text_chunks(request: TextRequest, answer: Answer) -> Iterator[bytes]:
    """Yield the server-sent events of a completion: its text with its end, its usage."""
    choice = _choice({"text": answer.text}, _finish(answer), _text_logprobs(request, answer))
    yield from _events("text_completion", request, answer, [choice])


def _events(
    kind: str, request: ChatRequest | TextRequest, answer: Answer, choices: list[dict[str, Any]]
) -> Iterator[bytes]:
    usage: dict[str, Any] = {"usage": None} if request.includes_usage else {}
    for choice in choices:
        yield _event(_envelope(kind, answer, [choice]) | usage)
    if request.includes_usage:
        yield _event(_envelope(kind, answer, []) | {"usage": _usage(answer)})
    yield b"data: [DONE]\n\n"


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def _envelope(kind: str, answer: Answer, choices: list[dict[str, Any]]) -> dict[str, Any]:
    prefix = "cmpl" if kind == "text_completion" else "chatcmpl"
    envelope: dict[str, Any] = {
        "id": f"{prefix}-{answer.number}",
        "object": kind,
        "created": int(time.time()),
        "model": MODEL,
        "choices": choices,
    }
    # The client library keeps fields that it does not know.
    return envelope | ({"notes": list(answer.notes)} if answer.notes else {})


def _choice(body: dict[str, Any], finish: str | None, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    return {"index": 0, **body, "logprobs": logprobs, "finish_reason": finish}


def _finish(answer: Answer) -> str:
    if answer.finish is FinishReason.LENGTH:
        return "length"
    return "tool_calls" if answer.calls else "stop"


def _usage(answer: Answer) -> dict[str, int]:
    count = len(answer.tokens)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": count,
        "total_tokens": answer.prompt_tokens + count,
    }


def _chat_logprobs(request: ChatRequest, answer: Answer) -> dict[str, Any] | None:
    if not request.logprobs:
        return None
    content = [
        {
            "token": piece,
            "logprob": _finite(logprob),
            "bytes": list(piece.encode(errors="replace")),
            "top_logprobs": [],
        }
        for piece, logprob in zip(answer.pieces, answer.logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def _text_logprobs(request: TextRequest, answer: Answer) -> dict[str, Any] | None:
    if request.logprobs is None:
        return None
    offsets = [0]
    for piece in answer.pieces:
        offsets.append(offsets[-1] + len(piece))
    logprobs = [_finite(logprob) for logprob in answer.logprobs]
    return {
        "tokens": list(answer.pieces),
        "token_logprobs": logprobs,
        "top_logprobs": [{piece: logprob} for piece, logprob in zip(answer.pieces, logprobs, strict=True)],
        "text_offset": offsets[:-1],
    }


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LEAST_LOGPROB

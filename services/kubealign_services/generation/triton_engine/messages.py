"""JSON messages between worker and model, one message per input or output tensor. Pure.

A worker's messages have `op` and, after `open`, the id of their session. The model's messages have exactly
one of: `load` and `failed` (answers to `open`), `sample`, `result`, `error`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from typing import Any

from kubealign_services.generation.contract import (
    EngineLoad,
    FinishReason,
    GeneratedSample,
    GenerationRequest,
    SamplingParameters,
)

#: Names of the model, and of its one input and its one output tensor of bytes.
MODEL_NAME, TENSOR_NAME = "kubealign", "message"


class Op(StrEnum):
    """Operation of a worker's message.

    OPEN creates the engine, which belongs to the session until CLOSE or until the client disconnects.
    Between HOLD and RELEASE the engine generates no token, but answers other operations. ABORT and RELEASE
    have no answer.
    """

    OPEN = "open"
    CLOSE = "close"
    GENERATE = "generate"
    ABORT = "abort"
    HOLD = "hold"
    RELEASE = "release"
    REFIT = "refit"
    ADAPT = "adapt"
    SEQUENCE_LOGPROBS = "sequence_logprobs"
    CONTINUATION_LOGPROBS = "continuation_logprobs"


class ErrorKind(StrEnum):
    """Kind of an error answer.

    REQUEST: the request can never be served. VALUE: weights or tokens that do not fit. MODEL: the folder's
    model is not supported. LOST: the message belongs to another session, or came before the first weights.
    STATE: not possible at this moment.
    """

    REQUEST = "request"
    VALUE = "value"
    MODEL = "model"
    LOST = "lost"
    STATE = "state"


def encode(message: Mapping[str, Any]) -> bytes:
    """Encode a message as JSON. NaN and infinities are written in Python's notation."""
    return json.dumps(message, separators=(",", ":")).encode()


def decode(data: bytes) -> dict[str, Any]:
    """Decode a message. Raises ValueError for data that is not a JSON object."""
    message = json.loads(data)
    if not isinstance(message, dict):
        raise ValueError(f"a message is a JSON object, not {type(message).__name__}")
    return message


def error_message(kind: ErrorKind, words: str) -> dict[str, Any]:
    """Build an `error` message."""
    return {"error": kind.value, "words": words}


def _fields(value: Any) -> dict[str, Any]:
    # Not dataclasses.asdict: it copies every list of tokens, element by element.
    return {field.name: getattr(value, field.name) for field in fields(value)}


def request_fields(request: GenerationRequest) -> dict[str, Any]:
    return _fields(request) | {"sampling": _fields(request.sampling)}


def parse_request(data: Mapping[str, Any]) -> GenerationRequest:
    """Parse a request. Raises TypeError or KeyError for malformed data."""
    sampling: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data["sampling"].items()
    }
    return GenerationRequest(
        request_id=data["request_id"],
        prompt_tokens=tuple(data["prompt_tokens"]),
        seeds=tuple(data["seeds"]),
        sampling=SamplingParameters(**sampling),
    )


def sample_fields(sample: GeneratedSample) -> dict[str, Any]:
    return _fields(sample)


def parse_sample(data: Mapping[str, Any]) -> GeneratedSample:
    return GeneratedSample(**{**data, "finish": FinishReason(data["finish"])})


def load_fields(load: EngineLoad) -> dict[str, Any]:
    return _fields(load)


def parse_load(data: Mapping[str, Any]) -> EngineLoad:
    return EngineLoad(**data)


def logprobs_message(logprobs: Sequence[Sequence[float]], version: int) -> dict[str, Any]:
    """Build the answer to CONTINUATION_LOGPROBS."""
    return {"result": {"logprobs": logprobs, "version": version}}

"""What worker and model say to each other: JSON, one message an input or output tensor. Pure.

A worker's messages have `op` and, after `open`, the session that they belong to. The model's have exactly one
of: `load` and `failed` (answers to `open`), `sample`, `result`, `error`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from typing import Any

from kubealign_services.generation.contract import (
    EngineLoad,
    Finish,
    GeneratedSample,
    GenerationRequest,
    SamplingParameters,
)

#: Of the model, and of its one input and its one output: bytes.
MODEL, TENSOR = "kubealign", "message"


class Op(StrEnum):
    """OPEN makes the engine, which is the session's until CLOSE, or until the client has gone. From HOLD to
    RELEASE it makes no token, whatever else it is asked. ABORT and RELEASE are not answered."""

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


class Refusal(StrEnum):
    """Why there is no answer. REQUEST: it can never be served. VALUE: weights or tokens that do not fit.
    MODEL: the folder's model cannot be run. LOST: of another session, or before the first weights. STATE:
    not at this moment."""

    REQUEST = "request"
    VALUE = "value"
    MODEL = "model"
    LOST = "lost"
    STATE = "state"


def encoded(message: Mapping[str, Any]) -> bytes:
    """NaN and infinities are written as Python does, and read so."""
    return json.dumps(message, separators=(",", ":")).encode()


def decoded(data: bytes) -> dict[str, Any]:
    """Raises ValueError for what is not a JSON object."""
    message = json.loads(data)
    if not isinstance(message, dict):
        raise ValueError(f"a message is a JSON object, not {type(message).__name__}")
    return message


def refusal(kind: Refusal, words: str) -> dict[str, Any]:
    """An `error` message."""
    return {"error": kind.value, "words": words}


def _fields(value: Any) -> dict[str, Any]:
    # Not dataclasses.asdict: it copies every list of tokens, element by element.
    return {field.name: getattr(value, field.name) for field in fields(value)}


def request_fields(request: GenerationRequest) -> dict[str, Any]:
    return _fields(request) | {"sampling": _fields(request.sampling)}


def read_request(said: Mapping[str, Any]) -> GenerationRequest:
    """Raises TypeError or KeyError for what is none."""
    sampling: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in said["sampling"].items()
    }
    return GenerationRequest(
        request_id=said["request_id"],
        prompt_tokens=tuple(said["prompt_tokens"]),
        seeds=tuple(said["seeds"]),
        sampling=SamplingParameters(**sampling),
    )


def sample_fields(sample: GeneratedSample) -> dict[str, Any]:
    return _fields(sample)


def read_sample(said: Mapping[str, Any]) -> GeneratedSample:
    return GeneratedSample(**{**said, "finish": Finish(said["finish"])})


def load_fields(load: EngineLoad) -> dict[str, Any]:
    return _fields(load)


def read_load(said: Mapping[str, Any]) -> EngineLoad:
    return EngineLoad(**said)


def scored(logprobs: Sequence[Sequence[float]], version: int) -> dict[str, Any]:
    """The answer to CONTINUATION_LOGPROBS."""
    return {"result": {"logprobs": logprobs, "version": version}}

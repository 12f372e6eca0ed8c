"""Requests of the OpenAI API: fields, types and allowed values.

A field whose value changes nothing is accepted with this value only, so that no request is served in another
way than it asks for.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator

from kubealign_services.roles.rollout.agents.errors import ApiError

#: Most stop strings, as the API has it.
MAX_STOPS = 4

_Text = Annotated[str, Field(min_length=1)]
_Zero = Literal[0]


class _Part(BaseModel):
    """Part of a message's content."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["text"]
    text: str


class _CalledFunction(BaseModel):
    model_config = ConfigDict(strict=True)
    name: _Text
    arguments: str


class _Call(BaseModel):
    model_config = ConfigDict(strict=True)
    id: _Text
    type: Literal["function"] = "function"
    function: _CalledFunction


class _ChatMessage(BaseModel):
    """Message of a conversation; fields that the template does not read are dropped."""

    model_config = ConfigDict(extra="ignore", strict=True)
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class _Function(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    name: _Text
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: Literal[False] | None = None


class _Tool(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["function"]
    function: _Function


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class _Completion(BaseModel):
    """Fields of both kinds of requests."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: list[_Text] = Field(default_factory=list, max_length=MAX_STOPS)
    seed: int | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    n: Literal[1] | None = None
    frequency_penalty: _Zero | None = None
    presence_penalty: _Zero | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    user: str | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _list_of_stops(cls, value: Any) -> Any:
        return [] if value is None else [value] if isinstance(value, str) else value

    @field_validator("stream", mode="before")
    @classmethod
    def _no_stream(cls, value: Any) -> Any:
        return False if value is None else value

    @property
    def includes_usage(self) -> bool:
        """True if the last chunk of a stream has the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(_Completion):
    """Body of /v1/chat/completions."""

    messages: list[_ChatMessage] = Field(min_length=1)
    # The newer name of the limit.
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, validation_alias=AliasChoices("max_tokens", "max_completion_tokens")
    )
    tools: list[_Tool] | None = None
    tool_choice: Literal["auto"] | None = None
    parallel_tool_calls: Literal[True] | None = None
    logprobs: bool | None = None
    top_logprobs: _Zero | None = None
    metadata: dict[str, str] | None = None
    store: Literal[False] | None = None

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """Messages as a chat template reads them: content is text, arguments of calls are objects."""
        return [_template_message(message) for message in self.messages]

    @property
    def tool_schemas(self) -> list[dict[str, Any]]:
        """JSON schemas of the tools."""
        return [
            {"type": "function", "function": tool.function.model_dump(exclude={"strict"})}
            for tool in self.tools or []
        ]


class TextRequest(_Completion):
    """Body of /v1/completions."""

    prompt: str | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    suffix: None = None


RequestModel = TypeVar("RequestModel", ChatRequest, TextRequest)


def parse_request(model: type[RequestModel], body: bytes) -> RequestModel:
    """Return the request of a body.

    Raises:
        ApiError: The body is no JSON object, or a parameter is missing, unknown, or has a value that is not
            supported; the error names it.
    """
    try:
        document = json.loads(body)
    except ValueError as error:
        raise ApiError(400, f"the body is no JSON: {error}") from error
    if not isinstance(document, Mapping):
        raise ApiError(400, "the body must be a JSON object")
    if model is ChatRequest and {"max_tokens", "max_completion_tokens"} <= document.keys():
        raise ApiError(400, "max_tokens and max_completion_tokens are one limit: give one", "max_tokens")
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise _to_api_error(error) from error


def _to_api_error(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False)[0]
    # Names of the members of a union are no part of the document.
    path = [str(each) for each in first["loc"]]
    param = ".".join(path)
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{param} is not supported", param, "unsupported_parameter")
    shown = json.dumps(first["input"], default=str)[:100]
    code = "unsupported_value" if first["type"] in {"literal_error", "none_required"} else "invalid_value"
    return ApiError(400, f"{param}: {shown}: {first['msg']}", param, code)


def _template_message(message: _ChatMessage) -> dict[str, Any]:
    content = message.content
    text = content if isinstance(content, str) else "".join(part.text for part in content or ())
    role = "system" if message.role == "developer" else message.role
    rendered: dict[str, Any] = {"role": role, "content": text}
    if message.tool_calls:
        rendered["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        rendered |= {"tool_call_id": message.tool_call_id or "", "name": message.name or ""}
    return rendered


def _arguments(text: str) -> Any:
    """Return the arguments of a call: an object where the text is JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text

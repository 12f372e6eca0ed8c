"""Tool calls in the model's own format, with typed functions and MCP servers as tools."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, model_validator

from kubealign.spec.base import (
    ENV_NAME_PATTERN,
    HEADER_NAME_PATTERN,
    HTTP_ADDRESS_PATTERN,
    LIST_SET_SCHEMA,
    MAX_INT32,
    PYTHON_NAME_PATTERN,
    ShortText,
    SpecModel,
    distinct_items,
    field_errors,
    list_map_schema,
    require_exactly_one,
    unique_by,
)
from kubealign.spec.workflows.tool_functions import ToolFunction

#: Transports of an MCP server, exactly one of which is set.
MCP_TRANSPORTS = ("http", "stdio")
#: Example of a transport.
MCP_EXAMPLE = "http: {url: 'http://search:8000/mcp'}"
#: Message for tool calls without any tool.
NO_TOOLS = "there are no tools to call: name a function here, or a server in mcpServers"
#: Message for a parser beside a plugin.
ONE_PARSER = "parserPlugin is the parser: remove either"

EnvironmentVariable = Annotated[str, Field(pattern=ENV_NAME_PATTERN, max_length=256)]
HeaderName = Annotated[str, Field(pattern=HEADER_NAME_PATTERN, max_length=256)]


class TypedToolSpec(SpecModel):
    """A Python function with typed arguments, which the policy can call.

    Its JSON schema is made of its type hints and its docstring in Google style, which must describe each
    argument. It returns text or any JSON value. It runs in a process of its own, one call at a time.
    """

    name: Annotated[str, Field(pattern=PYTHON_NAME_PATTERN, max_length=64)] | None = Field(
        None, description="Name of the tool in calls; null: that of the function."
    )
    function: ToolFunction = Field(description="The function.")
    timeout_seconds: float = Field(
        10.0, gt=0, description="Timeout of a call, after which its result is an error."
    )


class McpHttp(SpecModel):
    """An MCP server that is reached over streamable HTTP.

    In a cluster rollout.egress must allow the connection, for the workers and for the preparation, which
    lists the tools. podTemplate of rollout and controlPods.prepare give both the variables from a Secret.
    """

    url: Annotated[str, Field(pattern=HTTP_ADDRESS_PATTERN, max_length=1024)] = Field(
        description="Address of the server, most often with /mcp at its end."
    )
    token_variable: EnvironmentVariable | None = Field(
        None,
        description="Environment variable with the server's token, which is sent as a bearer token; null: "
        "none is sent.",
    )
    header_variables: dict[HeaderName, EnvironmentVariable] = Field(
        default_factory=dict,
        max_length=16,
        description="Further headers of each request: name of the header -> environment variable with its "
        "value.",
    )


class McpStdio(SpecModel):
    """An MCP server that each worker starts as a process, and reaches over its standard input and output."""

    command: Annotated[str, Field(min_length=1, max_length=4096)] = Field(description="Program.")
    args: list[Annotated[str, Field(max_length=4096)]] = Field(
        default_factory=list, max_length=64, description="Arguments of the program."
    )
    variables: Annotated[list[EnvironmentVariable], distinct_items] = Field(
        default_factory=list,
        max_length=64,
        json_schema_extra=LIST_SET_SCHEMA,
        description="Environment variables of the worker that the process gets, besides HOME, PATH and a "
        "few like them.",
    )


class McpServerSpec(SpecModel):
    """A server of the Model Context Protocol (MCP), whose tools the policy can call."""

    name: str = Field(pattern=PYTHON_NAME_PATTERN, max_length=64, description="Name of the server in errors.")
    http: McpHttp | None = Field(None, description="A server that runs elsewhere.")
    stdio: McpStdio | None = Field(None, description="A process of each worker.")
    tools: Annotated[list[ShortText], distinct_items] | None = Field(
        None, min_length=1, max_length=64, description="Names of the tools to offer; null: all."
    )
    timeout_seconds: float = Field(
        30.0,
        gt=0,
        description="Timeout of a call, after which its result is an error; a connection has 30 s at least.",
    )

    @model_validator(mode="after")
    def _one_transport(self) -> "McpServerSpec":
        """Check that exactly one transport is set."""
        require_exactly_one(self, list(MCP_TRANSPORTS), MCP_EXAMPLE)
        return self


class ToolCallFormat(StrEnum):
    """Format of the calls in a turn.

    Auto: the format that reads a call as the chat template writes it. Hermes: JSON between <tool_call> tags
    (Qwen 2.5, Qwen 3, Hermes). Llama3: a turn of JSON objects (Llama 3.1 to 3.3). Mistral: after
    [TOOL_CALLS]. Pythonic: [f(a=1), g()] (Llama 3.2 1B and 3B, Llama 4, LFM2).
    """

    AUTO = "Auto"
    HERMES = "Hermes"
    LLAMA3 = "Llama3"
    MISTRAL = "Mistral"
    PYTHONIC = "Pythonic"


class ToolCallsSpec(SpecModel):
    """Tool calls of the policy in its model's own format, as its chat template renders them.

    The prompts, which must be chat messages, contain the tools' schemas. The calls of a turn are read from
    its text, their results are appended as messages with the role tool, and generation continues. All that
    the template writes is excluded from the loss. maxTokens limits turns and results together.
    """

    tools: list[TypedToolSpec] = Field(
        default_factory=list, max_length=64, description="Python functions as tools."
    )
    mcp_servers: Annotated[list[McpServerSpec], unique_by("name")] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra=list_map_schema("name"),
        description="MCP servers, whose tools are added.",
    )
    parser: ToolCallFormat = Field(ToolCallFormat.AUTO, description="Format of the calls.")
    parser_plugin: ShortText | None = Field(
        None,
        description="Name of a parser of another package: an entry point in the group "
        "kubealign.tool_call_parsers; null: none.",
    )
    max_turns: int = Field(
        8,
        ge=1,
        le=MAX_INT32,
        description="Most turns of the policy in a response; the calls of the last one are not answered.",
    )
    max_calls: int | None = Field(
        None,
        ge=1,
        le=MAX_INT32,
        description="Most calls in a response: further ones get an error, and a turn of such calls alone "
        "ends the response. null: unlimited.",
    )
    parallel_calls: bool = Field(
        True,
        description="Answer all calls of a turn, at the same time; false: the first one only, for chat "
        "templates that take one call in a turn.",
    )

    @model_validator(mode="after")
    def _callable(self) -> "ToolCallsSpec":
        """Check that there is a tool, and one parser."""
        problems: list[tuple[tuple[str], Any, str]] = []
        if not self.tools and not self.mcp_servers:
            problems.append((("tools",), self.tools, NO_TOOLS))
        if self.parser_plugin is not None and self.parser is not ToolCallFormat.AUTO:
            problems.append((("parser",), self.parser, ONE_PARSER))
        if problems:
            raise field_errors("ToolCalls", *problems)
        return self

"""Typed functions as tools: their JSON schemas, and calls with arguments."""

import asyncio
import functools
import inspect
import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from inspect import Parameter
from typing import Any


class NoSchema(ValueError):
    """A function has no JSON schema: a type, a description or the docstring is missing."""


#: Kinds of parameters that JSON arguments cannot fill by name.
_UNNAMED = {
    Parameter.VAR_POSITIONAL: "takes any number of arguments",
    Parameter.VAR_KEYWORD: "takes arguments of any name",
    Parameter.POSITIONAL_ONLY: "is positional only",
}


def describe_function(function: Callable[..., Any], name: str | None = None) -> dict[str, Any]:
    """Return the schema of a function, as `transformers.utils.get_json_schema` makes it of the type hints and
    the Google-style docstring: {"type": "function", "function": {"name", "description", "parameters"}}.

    Args:
        name: Name of the tool; None: that of the function.

    Raises:
        NoSchema: A parameter has no type hint, no description, or is not named; or there is no docstring.
    """
    # Takes seconds to import, and only the preparation describes functions.
    from transformers.utils import get_json_schema

    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in _UNNAMED:
            raise NoSchema(f"its parameter {parameter} {_UNNAMED[parameter.kind]}: name each argument")
    try:
        schema: dict[str, Any] = get_json_schema(function)
    except Exception as error:
        raise NoSchema(" ".join(str(error).split())) from error
    if name is not None:
        schema["function"]["name"] = name
    return schema


def call_with_arguments(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, str]:
    """Call a function and return {"answer": text}, or {"failure": text} where it fails.

    Text is returned as it is, any other value as JSON; a coroutine is run to its end. The traceback goes to
    standard error, and the failure names the exception only.
    """
    try:
        result = run_to_end(function(**arguments))
        return {"answer": result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)}
    # The policy may learn to avoid what its call caused.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        traceback.print_exc(file=sys.stderr)
        return {"failure": f"{type(error).__name__}: {error}".removesuffix(": ")}


def run_to_end(returned: Any) -> Any:
    """Return a function's result; a coroutine is run to its end."""
    return _event_loop().run(_result_of(returned)) if inspect.isawaitable(returned) else returned


@functools.cache
def _event_loop() -> asyncio.Runner:
    """Return the event loop of all calls: clients that a coroutine function keeps belong to one loop."""
    return asyncio.Runner()


async def _result_of(returned: Awaitable[Any]) -> Any:
    return await returned

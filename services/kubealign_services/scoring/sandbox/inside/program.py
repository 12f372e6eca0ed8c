"""Runs a program, and what tests in another sandbox ask of it.

Arguments: `DOCUMENT READY CHANNEL`, the numbers of a file, a pipe and a socket. Everything here
is in the program's hands; the verdict is not.
"""

import builtins
import json
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

from kubealign_services.scoring.sandbox.inside.channel import (
    Channel,
    ChannelClosed,
    describe_exception,
    open_socket,
)
from kubealign_services.scoring.sandbox.inside.start import announce_readiness, define_exits, set_limits


class TestFunction:
    """A function of the tests that was passed to the program."""

    def __init__(self, channel: Channel, handle: int) -> None:
        self._channel, self.handle = channel, handle

    def __call__(self, *values: Any) -> Any:
        """Call the function. Raises what it raises."""
        return self._channel.call("call", self, *values)


def main() -> None:
    """Run the setup and the program, then serve the tests until they end."""
    with open(int(sys.argv[1]), encoding="utf-8") as file:  # noqa: PTH123 (a file descriptor)
        document = json.load(file)
    set_limits(document["limits"])
    reader, writer = open_socket(int(sys.argv[3]))
    module = types.ModuleType("program")
    sys.modules["program"] = module
    references: dict[int, TestFunction] = {}

    def make_reference(handle: int) -> TestFunction:
        return references.setdefault(handle, TestFunction(channel, handle))

    channel = Channel(
        reader,
        writer,
        _operations(module.__dict__),
        make_reference,
        lambda value: value.handle if isinstance(value, TestFunction) else None,
        lambda value: True,
    )
    announce_readiness(int(sys.argv[2]))
    sys.argv = ["program.py"]
    sys.path.pop(0)
    define_exits()
    try:
        for part in ("setup", "program"):
            exec(compile(document[part], f"{part}.py", "exec"), module.__dict__)
    except BaseException as error:  # noqa: BLE001 (a program that exits has defined nothing)
        channel.send({"error": describe_exception(error)})
        return
    channel.send({"value": None})
    try:
        channel.serve_until_closed()
    except ChannelClosed:
        return


def _operations(names: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """Return what a test may do with the program's objects."""
    operations: dict[str, Callable[..., Any]] = {
        "name": lambda name: _described(names, name),
        "call": lambda function, named, *values: function(
            *values[: len(values) - len(named)],
            **dict(zip(named, values[len(values) - len(named) :], strict=True)),
        ),
        "get": getattr,
        "set": setattr,
        "isinstance": lambda cls, value: isinstance(value, cls),
        "exit": lambda value: value.__exit__(None, None, None),
        "enter": lambda value: value.__enter__(),
    }
    for function in (len, iter, next, bool, str, repr, int, float, abs, round, reversed):
        operations[function.__name__] = function
    for name in ("getitem", "setitem", "delitem", "index", "neg", "eq", "ne", "lt", "le", "gt", "ge"):
        operations[name] = getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor"):
        operations[name] = getattr(operator, name)
    return operations


def _described(names: dict[str, Any], name: str) -> Any:
    """Return [kind, value] of a name of the program; an exception class as its name and built-in base."""
    if name not in names:
        return ["missing", None]
    value = names[name]
    if isinstance(value, type) and issubclass(value, BaseException):
        base = next(cls for cls in value.__mro__ if getattr(builtins, cls.__name__, None) is cls)
        return ["exception", [value.__name__, base.__name__]]
    return ["value", value]

"""Runs one test against a program in another sandbox, and states the verdict.

Arguments: `DOCUMENT READY CHANNEL VERDICT`, the numbers of a file, a pipe, a socket and a pipe.
Nothing of the program runs here: it sends values, see values.py.
"""

import ast
import builtins
import contextlib
import functools
import json
import os
import sys
import traceback
import types
from typing import Any

from kubealign_services.scoring.sandbox.inside.channel import (
    Channel,
    ChannelClosed,
    describe_exception,
    exception_class,
    open_socket,
)
from kubealign_services.scoring.sandbox.inside.program_object import ProgramObject, handle_of
from kubealign_services.scoring.sandbox.inside.start import announce_readiness, set_limits

_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
#: Function of the tests that is called with the entry point, as in HumanEval.
_CHECK = "check"


def main() -> None:
    """Run the test and write the verdict."""
    with open(int(sys.argv[1]), encoding="utf-8") as file:  # noqa: PTH123 (a file descriptor)
        document = json.load(file)
    set_limits(document["limits"])
    verdict_pipe = int(sys.argv[4])
    reader, writer = open_socket(int(sys.argv[3]))
    objects: dict[int, ProgramObject] = {}

    def make_reference(handle: int) -> ProgramObject:
        return objects.setdefault(handle, ProgramObject(channel, handle))

    operations = {"call": _call_function}
    channel = Channel(
        reader, writer, operations, make_reference, handle_of, lambda value: isinstance(value, _FUNCTIONS)
    )
    announce_readiness(int(sys.argv[2]))
    verdict = _verdict(channel, document)
    os.write(verdict_pipe, json.dumps(verdict).encode())


def _verdict(channel: Channel, document: dict[str, Any]) -> dict[str, Any]:
    """Return {"passed": True}, or {"passed": False} with name and text of the error."""
    test = document["test"]
    try:
        loaded = channel.receive()
        if "error" in loaded:
            error = loaded["error"]
            return {"passed": False, "name": str(error["name"]), "text": str(error["text"])}
        _run_test(channel, test, document["context"], document["entryPoint"])
    except ChannelClosed:
        return {"passed": False, "name": "", "text": "the program has ended its process"}
    except BaseException as error:  # noqa: BLE001 (a test fails by any exception)
        described = describe_exception(error)
        text = described["text"]
        if isinstance(error, AssertionError) and not text:
            text = _failed_line(error, test)
        return {"passed": False, "name": described["name"], "text": text}
    return {"passed": True}


def _run_test(channel: Channel, test: str, context: list[str], entry_point: str | None) -> None:
    """Run the test; it passes unless this raises.

    Args:
        context: Texts of the row that are part of the program; the test has their imports.
        entry_point: Name of the function that the test's `check` takes.
    """
    names: dict[str, Any] = {"__name__": "test"}
    for text in context:
        for statement in _parse(text).body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                # The program, which has the same import, fails by itself.
                with contextlib.suppress(ImportError):
                    exec(compile(ast.Module([statement], []), "context.py", "exec"), names)
    tree = ast.parse(test, "test.py")
    for name in sorted(_free_names(tree) - names.keys()):
        if hasattr(builtins, name) and name != entry_point:
            continue
        if name in sys.stdlib_module_names and name != entry_point and name not in _called_names(tree):
            names[name] = __import__(name)
            continue
        _bind_program_name(channel, names, name)
    exec(compile(tree, "test.py", "exec"), names)
    if entry_point is not None:
        _bind_program_name(channel, names, entry_point)
        if entry_point not in names:
            raise NameError(f"the program does not define {entry_point}")
        names[_CHECK](names[entry_point])


def _parse(text: str) -> ast.Module:
    """Return the syntax tree; an empty one of a text that is complete with the response only."""
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module([], [])


def _bind_program_name(channel: Channel, names: dict[str, Any], name: str) -> None:
    kind, value = channel.call("name", name)
    if kind == "exception":
        names[name] = exception_class(str(value[0]), str(value[1]))
    elif kind == "value":
        names[name] = value


def _free_names(tree: ast.Module) -> set[str]:
    """Return the names that the test reads and does not define."""
    read, defined = set(), set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name):
                defined.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                defined.add(name)
            case ast.arg(arg=name):
                defined.add(name)
            case ast.alias(name=module, asname=alias):
                defined.add(alias or module.partition(".")[0])
            case ast.ExceptHandler(name=str(name)):
                defined.add(name)
    return read - defined


def _called_names(tree: ast.Module) -> set[str]:
    return {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def _call_function(function: Any, *values: Any) -> Any:
    """Call a function of the test, which was passed to the program. Raises TypeError for any other object."""
    if not isinstance(function, _FUNCTIONS):
        raise TypeError("only a function of the tests can be called")
    return function(*values)


def _failed_line(error: BaseException, test: str) -> str:
    """Return the last line of the test that the error has passed."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "test.py"
    ]
    source = test.splitlines()
    return source[lines[-1] - 1].strip() if lines and lines[-1] is not None else ""

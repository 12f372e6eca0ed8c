"""Child process that runs one reward function.

Command line: `python -m kubealign_services.scoring.functions.child_main`.

The first line of the input names the function, as in protocol.py; the parameters of a plugin may be secret,
and other users of the machine can read a command line. The protocol uses the original standard input and
output; the function's own prints go to standard error. The process ends when its input or its parent ends,
whatever the function is doing.

The function runs in a child of this process, its supervisor, which ends with every process that the function
has started.
"""

import functools
import importlib
import importlib.util
import inspect
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from kubealign.local.processes.parent_death import die_with_parent
from kubealign_services.runtime.process.reaper import run_and_kill_descendants
from kubealign_services.scoring.functions.protocol import FunctionFailure
from kubealign_services.scoring.functions.results import (
    InvalidResult,
    RewardResult,
    check_results,
    describe_value,
)
from kubealign_services.scoring.functions.typed_function import (
    NoSchema,
    call_with_arguments,
    describe_function,
    run_to_end,
)


class FunctionError(Exception):
    """An error reply to the parent instead of rewards."""

    def __init__(self, kind: FunctionFailure, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def main() -> int:
    """Serve requests in a supervised child until the input ends."""
    die_with_parent(os.getppid(), signal.SIGTERM)
    return run_and_kill_descendants(_serve)


def _serve() -> int:
    requests, replies = private_pipes()
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests, lines), daemon=True).start()
    try:
        function = load_function(json.loads(lines.get()))
    except FunctionError as refusal:
        _reply(replies, {"error": refusal.kind, "message": str(refusal)})
        return 1
    _reply(replies, {"results": []})
    while True:
        request = json.loads(lines.get())
        try:
            reply = handle_request(function, request)
        except FunctionError as refusal:
            reply = {"error": refusal.kind, "message": str(refusal)}
        _reply(replies, reply)


def handle_request(function: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to a request for rewards or to a tool call. Raises FunctionError."""
    if "argument" in request:
        return {"answer": call_tool(function, request["argument"])}
    if "arguments" in request:
        return call_with_arguments(function, request["arguments"])
    if "tool" in request:
        try:
            return {"schema": describe_function(function, request["tool"])}
        except NoSchema as error:
            raise FunctionError(FunctionFailure.BAD, f"has no JSON schema: {error}") from error
    results = call_reward(function, request["prompts"], request["responses"], request["columns"])
    return {"results": [result.to_json() for result in results]}


def load_function(named: dict[str, Any]) -> Callable[..., Any]:
    """Load the named function.

    Raises FunctionError where it is missing, with the names that the file defines.
    """
    if "plugin" in named:
        return _load_plugin(named["plugin"], named["parameters"])
    if "verifier" in named:
        return _load_verifier(named["verifier"])
    if "module" in named:
        module_name, _, name = named["module"].partition(":")
    else:
        name = named["name"]
    try:
        module = (
            importlib.import_module(module_name) if "module" in named else _import_file(Path(named["file"]))
        )
    except (Exception, SystemExit) as error:
        raise FunctionError(
            FunctionFailure.MISSING, f"cannot be imported: {describe_error(error)}"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        defined = ", ".join(_defined_functions(module)) or "none"
        raise FunctionError(FunctionFailure.MISSING, f"is not defined there; it defines: {defined}")
    return function  # type: ignore[no-any-return]


def _load_plugin(name: str, parameters: dict[str, Any]) -> Callable[..., Any]:
    from kubealign_services.scoring.functions.plugin import PluginError, load_plugin_reward

    try:
        return load_plugin_reward(name, parameters)
    except PluginError as error:
        raise FunctionError(FunctionFailure.MISSING, f"cannot be had: {error}") from error


def _load_verifier(document: dict[str, Any]) -> Callable[..., Any]:
    from kubealign.spec.sections.verifiers import Verifier
    from kubealign_services.scoring.verifiers.contract import VerifierFunction
    from kubealign_services.scoring.verifiers.factory import make_verifier

    try:
        spec = Verifier.model_validate(document)
        return VerifierFunction(make_verifier(spec), spec.named_columns().values())
    except ValueError as error:
        raise FunctionError(FunctionFailure.MISSING, f"cannot be used: {error}") from error
    except ImportError as error:
        raise FunctionError(
            FunctionFailure.MISSING, f"needs a library that is not installed: {error}"
        ) from error


def call_reward(
    function: Callable[..., Any], prompts: list[str], responses: list[str], columns: dict[str, list[Any]]
) -> list[RewardResult]:
    """Return one result per response. A coroutine is run to its end.

    Raises FunctionError where the function raises or returns anything else.
    """
    accepted = _accepted_columns(function, columns)
    try:
        returned = run_to_end(function(prompts, responses, **accepted))
    except (Exception, SystemExit) as error:
        count = f"{len(responses)} response{'s' if len(responses) != 1 else ''}"
        raise FunctionError(FunctionFailure.RAISED, f"raised on {count}: {describe_error(error)}") from error
    try:
        return check_results(returned, len(responses))
    except InvalidResult as error:
        raise FunctionError(FunctionFailure.BAD, str(error)) from error


def call_tool(function: Callable[..., Any], argument: str) -> str:
    """Return the tool's output.

    Raises FunctionError where it raises or returns anything but text or a number.
    """
    try:
        result = function(argument)
    except (Exception, SystemExit) as error:
        raise FunctionError(FunctionFailure.RAISED, f"raised: {describe_error(error)}") from error
    if isinstance(result, bool) or not isinstance(result, str | int | float):
        raise FunctionError(FunctionFailure.BAD, f"returned {describe_value(result)}, not text or a number")
    return str(result)


def _accepted_columns(function: Callable[..., Any], columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the columns that the function takes by name, or all where it takes any.

    Columns named like its first two parameters, and arguments already bound, are left out.
    """
    if isinstance(function, functools.partial):
        columns = {name: entry for name, entry in columns.items() if name not in function.keywords}
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return columns
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2 and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise FunctionError(
            FunctionFailure.BAD,
            f"takes {inspect.signature(function)}; a reward takes (prompts, responses, **columns)",
        )
    first_two = {p.name for p in positional[:2]}
    needed = [p for p in named if p.name not in first_two]
    for parameter in needed:
        if parameter.default is parameter.empty and parameter.name not in columns:
            available = ", ".join(sorted(columns)) or "none"
            raise FunctionError(
                FunctionFailure.BAD,
                f"asks for a column {parameter.name!r} that the data does not have; there are: {available}",
            )
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return {name: column for name, column in columns.items() if name not in first_two}
    return {p.name: columns[p.name] for p in needed if p.name in columns}


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    # Modules in the same folder can be imported, as with `python FILE`.
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _defined_functions(module: ModuleType) -> list[str]:
    return sorted(
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    )


def describe_error(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    last = next((frame for frame in reversed(frames) if not frame.filename.startswith("<frozen")), None)
    this_file = Path(__file__).name
    location = (
        f" ({last.filename}, line {last.lineno}: {last.line})"
        if last and Path(last.filename).name != this_file
        else ""
    )
    return f"{type(error).__name__}: {error}{location}"


def _reply(replies: BinaryIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message).encode() + b"\n")
    replies.flush()


def _read_requests(requests: BinaryIO, lines: "queue.SimpleQueue[bytes]") -> None:
    for line in requests:
        lines.put(line)
    # The parent closed the pipe or ended; the function may never return.
    os._exit(0)


def private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Move the protocol's pipes out of the function's reach: its input is empty, its output goes to standard
    error.
    """
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    empty_input = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty_input, 0)
    os.close(empty_input)
    os.dup2(2, 1)
    return requests, replies


if __name__ == "__main__":
    sys.exit(main())

"""Calls between a program and its tests, which run in two sandboxes: one JSON object per line each way.

A request is {"do": OPERATION, "with": [values]}, a reply {"value": value, "arguments": {index: value}} or
{"error": {"name", "base", "text"}}. While a side waits for a reply it serves the requests of the other one:
a test may pass a function to the program.
"""

import builtins
import collections
import json
import os
from collections.abc import Callable
from typing import Any, BinaryIO

from kubealign_services.scoring.sandbox.inside.values import (
    RECEIVERS,
    SENDERS,
    NotTransferable,
    decode,
    encode,
)

#: Largest message in bytes.
MAX_MESSAGE = 2**24

#: Arguments of these types may be changed by a call, and are sent back.
_MUTABLE = (list, dict, set, bytearray, collections.deque)


class ChannelClosed(Exception):
    """The other side has ended."""


class Channel:
    """One side of the calls.

    Args:
        reader: Unbuffered or buffered binary stream of the other side's messages.
        writer: Stream of the messages to the other side.
        operations: Name -> function of the decoded values. They are all that the other side can do.
        make_reference: Returns the object that stands for the other side's object of a handle.
        handle_of: Returns the handle of an object that `make_reference` has returned; None for any other.
        may_refer: Decides whether the other side gets a reference to an object.
    """

    def __init__(
        self,
        reader: BinaryIO,
        writer: BinaryIO,
        operations: dict[str, Callable[..., Any]],
        make_reference: Callable[[int], Any],
        handle_of: Callable[[Any], int | None],
        may_refer: Callable[[Any], bool],
    ) -> None:
        self._reader, self._writer = reader, writer
        self._operations = operations
        self._make_reference, self._handle_of, self._may_refer = make_reference, handle_of, may_refer
        # Objects that the other side refers to are kept until the end: ids stay unique.
        self._objects: list[Any] = []
        self._handles: dict[int, int] = {}

    def call(self, operation: str, *values: Any) -> Any:
        """Have the other side do something, and return the result.

        Containers among the arguments of a call get the contents that they have on the other side.

        Raises what the other side raises, ChannelClosed, NotTransferable and ValueError.
        """
        self.send({"do": operation, "with": [encode(value, self._refer) for value in values]})
        while True:
            message = self.receive()
            if "do" in message:
                self._serve(message)
                continue
            if "error" in message:
                raise _exception(message["error"])
            for index, value in message.get("arguments", {}).items():
                _replace_contents(values[int(index)], decode(value, self._resolve))
            return decode(message["value"], self._resolve)

    def serve_until_closed(self) -> None:
        """Serve the requests of the other side until it ends."""
        while True:
            try:
                message = self.receive()
            except ChannelClosed:
                return
            self._serve(message)

    def receive(self) -> dict[str, Any]:
        """Raises ChannelClosed, and ValueError for a message that is none."""
        line = self._reader.readline(MAX_MESSAGE + 1)
        if len(line) > MAX_MESSAGE:
            raise ValueError(f"a value has more than {MAX_MESSAGE >> 20} MiB")
        if not line.endswith(b"\n"):
            raise ChannelClosed
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("a message is no object")
        return message

    def send(self, message: dict[str, Any]) -> None:
        """Raises ChannelClosed."""
        line = json.dumps(message).encode() + b"\n"
        try:
            self._writer.write(line)
            self._writer.flush()
        except OSError as error:
            raise ChannelClosed from error

    def _serve(self, message: dict[str, Any]) -> None:
        try:
            values = [decode(value, self._resolve) for value in message["with"]]
            result = self._operations[message["do"]](*values)
            arguments = {
                str(index): encode(value, self._refer)
                for index, value in enumerate(values)
                if isinstance(value, _MUTABLE)
            }
            reply = {"value": encode(result, self._refer), "arguments": arguments}
        except ChannelClosed:
            raise
        except BaseException as error:  # noqa: BLE001 (all that the program raises is the test's to judge)
            reply = {"error": describe_exception(error)}
        self.send(reply)

    def _refer(self, value: Any) -> list[Any]:
        handle = self._handle_of(value)
        if handle is not None:
            return [RECEIVERS, handle]
        if not self._may_refer(value):
            raise NotTransferable(f"a {type(value).__name__} of the tests cannot be passed to the program")
        if id(value) not in self._handles:
            self._handles[id(value)] = len(self._objects)
            self._objects.append(value)
        return [SENDERS, self._handles[id(value)]]

    def _resolve(self, reference: list[Any]) -> Any:
        match reference:
            case ["sender", int(handle)]:
                return self._make_reference(handle)
            case ["receiver", int(handle)] if 0 <= handle < len(self._objects):
                return self._objects[handle]
        raise ValueError("a reference to no object")


def open_socket(descriptor: int) -> tuple[BinaryIO, BinaryIO]:
    """Return the reader and the writer of a socket."""
    return os.fdopen(descriptor, "rb"), os.fdopen(os.dup(descriptor), "wb")


def describe_exception(error: BaseException) -> dict[str, str]:
    """Return the exception's name, the closest built-in class, and its text."""
    base = next(cls for cls in type(error).__mro__ if getattr(builtins, cls.__name__, None) is cls)
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 (the text of a program's exception is the program's code)
        text = ""
    return {"name": type(error).__name__, "base": base.__name__, "text": text[:2000]}


_EXCEPTIONS: dict[tuple[str, str], type[Exception]] = {}


def exception_class(name: str, base: str) -> type[Exception]:
    """Return the class of this side for an exception class of the other one: always the same for a name.

    One that would end the process becomes an Exception.
    """
    builtin = getattr(builtins, base, None)
    if not (isinstance(builtin, type) and issubclass(builtin, Exception)):
        builtin = Exception
    if builtin.__name__ == name:
        return builtin
    key = (name, builtin.__name__)
    if key not in _EXCEPTIONS:
        _EXCEPTIONS[key] = type(name, (builtin,), {"__init__": lambda self, *values: None})
    return _EXCEPTIONS[key]


def _exception(described: dict[str, Any]) -> Exception:
    cls = exception_class(str(described["name"]), str(described["base"]))
    try:
        return cls(described["text"])
    except TypeError:
        # UnicodeDecodeError and some others take other arguments.
        return exception_class(f"{described['name']} of the program", "Exception")(described["text"])


def _replace_contents(container: Any, contents: Any) -> None:
    if not isinstance(container, _MUTABLE) or type(contents) is not type(container) or contents == container:
        return
    container.clear()
    # Dictionaries and sets are updated, sequences extended.
    getattr(container, "update" if hasattr(container, "update") else "extend")(contents)

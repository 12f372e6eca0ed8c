"""JSON values of Python objects that a program and its tests exchange. Nothing is pickled.

Values of built-in types, and some of the standard library, are copied; a subclass is copied as its base, so
that a value cannot decide what it is equal to. Any other object stays in its process, and the other side gets
a reference to it.
"""

import builtins
import collections
import importlib
from collections.abc import Callable
from typing import Any

#: JSON value of a reference to an object of the sender, and of one to an object of the receiver.
SENDERS, RECEIVERS = "sender", "receiver"

_COPIED_FROM_MODULES = ("decimal", "fractions", "datetime")
_VIEWS: Any = (type({}.keys()), type({}.items()))
# Decimal digits of an integer that JSON carries; Python refuses to read more than 4,300.
_PLAIN_INTEGER = 10**1000


class NotTransferable(TypeError):
    """The object can be neither copied nor referred to."""


def encode(value: Any, refer: Callable[[Any], list[Any]]) -> Any:
    """Return the JSON value of an object.

    Raises NotTransferable as `refer` does, and RecursionError for a value that contains itself.

    Args:
        value: Any object.
        refer: Returns the reference to an object that is not copied.
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        number = int.__int__(value)
        return number if -_PLAIN_INTEGER < number < _PLAIN_INTEGER else ["integer", format(number, "x")]
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, bytes | bytearray):
        return [type(value).__name__ if type(value) is bytearray else "bytes", bytes(value).hex()]
    base: Any
    for base in (list, tuple, set, frozenset):
        if isinstance(value, base):
            return [base.__name__, [encode(item, refer) for item in base.__iter__(value)]]
    if isinstance(value, dict):
        return ["dict", [[encode(key, refer), encode(item, refer)] for key, item in dict.items(value)]]
    if isinstance(value, collections.deque):
        return ["deque", [encode(item, refer) for item in value], value.maxlen]
    if isinstance(value, _VIEWS):
        return ["set", [encode(item, refer) for item in value]]
    if type(value) is range:
        return ["range", value.start, value.stop, value.step]
    if _is_builtin_type(value):
        return ["type", value.__name__]
    if type(value).__module__ in _COPIED_FROM_MODULES:
        fields = _fields(value)
        if fields is not None:
            return [type(value).__module__, type(value).__name__, fields]
    return refer(value)


def decode(document: Any, resolve: Callable[[list[Any]], Any]) -> Any:
    """Return the object of a JSON value. Raises ValueError for a value that `encode` does not return.

    Args:
        document: JSON value of the other side, which may be hostile.
        resolve: Returns the object of a reference.
    """
    if not isinstance(document, list):
        if isinstance(document, dict):
            raise ValueError("an object is no value")
        return document
    if not document or not isinstance(document[0], str):
        raise ValueError("a value has no type")
    kind, *rest = document
    match kind, rest:
        case (("sender" | "receiver"), _):
            return resolve(document)
        case "integer", [str(digits)]:
            return int(digits, 16)
        case "complex", [float(real), float(imaginary)]:
            return complex(real, imaginary)
        case "bytes", [str(text)]:
            return bytes.fromhex(text)
        case "bytearray", [str(text)]:
            return bytearray.fromhex(text)
        case (("list" | "tuple" | "set" | "frozenset"), [list(items)]):
            container = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind]
            return container([decode(item, resolve) for item in items])
        case "dict", [list(pairs)]:
            return {decode(key, resolve): decode(item, resolve) for key, item in pairs}
        case "deque", [list(items), length]:
            return collections.deque([decode(item, resolve) for item in items], length)
        case "range", [int(start), int(stop), int(step)]:
            return range(start, stop, step)
        case "type", [str(name)] if isinstance(getattr(builtins, name, None), type):
            return getattr(builtins, name)
        case (("decimal" | "fractions" | "datetime"), [str(name), list(fields)]):
            return _from_fields(kind, name, fields)
    raise ValueError(f"no value of type {kind[:80]!r} is known")


def _is_builtin_type(value: Any) -> bool:
    return isinstance(value, type) and getattr(builtins, value.__name__, None) is value


def _fields(value: Any) -> list[Any] | None:
    """Return what the constructor or fromisoformat takes; None for an object that is not copied."""
    match type(value).__name__:
        case "Decimal":
            return [str(value)]
        case "Fraction":
            return [format(value.numerator, "x"), format(value.denominator, "x")]
        case "timedelta":
            return [value.days, value.seconds, value.microseconds]
        case "date" | "datetime" | "time" if getattr(value, "tzinfo", None) is None:
            return [value.isoformat()]
    return None


def _from_fields(module: str, name: str, fields: list[Any]) -> Any:
    cls: Any = getattr(importlib.import_module(module), name, None)
    match name, fields:
        case "Decimal", [str(text)]:
            return cls(text)
        case "Fraction", [str(numerator), str(denominator)]:
            return cls(int(numerator, 16), int(denominator, 16))
        case "timedelta", [int(days), int(seconds), int(microseconds)]:
            return cls(days, seconds, microseconds)
        case (("date" | "datetime" | "time"), [str(text)]):
            return cls.fromisoformat(text)
    raise ValueError(f"no value of type {name[:80]!r} is known")

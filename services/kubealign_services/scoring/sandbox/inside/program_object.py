"""Objects of the program in the process of its tests."""

from typing import Any

from kubealign_services.scoring.sandbox.inside.channel import Channel

_CHANNEL, _HANDLE = "_kubealign_channel", "_kubealign_handle"


class ProgramObject:
    """Stands for an object of the program, whose methods run there.

    The program must not decide whether it is right: its object equals no value of the tests, has no order
    with one, and takes none as the operand of an operator, from which it would learn what is expected.
    """

    __slots__ = (_CHANNEL, _HANDLE)

    def __init__(self, channel: Channel, handle: int) -> None:
        object.__setattr__(self, _CHANNEL, channel)
        object.__setattr__(self, _HANDLE, handle)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return ask(self, "get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        ask(self, "set", name, value)

    def __call__(self, *values: Any, **named: Any) -> Any:
        return ask(self, "call", list(named), *values, *named.values())

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, ProgramObject) and bool(ask(self, "isinstance", value))

    def __exit__(self, *error: Any) -> None:
        ask(self, "exit")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProgramObject) and bool(ask(self, "eq", other))

    def __ne__(self, other: object) -> bool:
        return not isinstance(other, ProgramObject) or bool(ask(self, "ne", other))

    def __hash__(self) -> int:
        return hash(handle_of(self))

    def __bool__(self) -> bool:
        return bool(ask(self, "bool"))

    def __str__(self) -> str:
        return str(ask(self, "str"))

    def __repr__(self) -> str:
        return str(ask(self, "repr"))

    def __len__(self) -> int:
        return int(ask(self, "len"))

    def __int__(self) -> int:
        return int(ask(self, "int"))

    def __float__(self) -> float:
        return float(ask(self, "float"))

    def __index__(self) -> int:
        return int(ask(self, "index"))


def ask(subject: ProgramObject, operation: str, *values: Any) -> Any:
    """Return the result of an operation on the program's object. Raises what the program raises."""
    channel: Channel = object.__getattribute__(subject, _CHANNEL)
    return channel.call(operation, subject, *values)


def handle_of(value: Any) -> int | None:
    """Return the handle of a program's object; None for any other."""
    if type(value) is not ProgramObject:
        return None
    handle: int = object.__getattribute__(value, _HANDLE)
    return handle


def _forward(name: str) -> None:
    def method(self: ProgramObject, *values: Any) -> Any:
        return ask(self, name, *values)

    setattr(ProgramObject, f"__{name}__", method)


def _forward_operator(name: str) -> None:
    def method(self: ProgramObject, other: Any) -> Any:
        # Without a result Python raises TypeError, which names both types.
        return ask(self, name, other) if isinstance(other, ProgramObject) else NotImplemented

    setattr(ProgramObject, f"__{name.strip('_')}__", method)


for _name in ("iter", "next", "reversed", "getitem", "setitem", "delitem", "neg", "abs", "round", "enter"):
    _forward(_name)
for _name in ("lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    _forward_operator(_name)
for _name in ("and_", "or_", "xor"):
    _forward_operator(_name)

"""Types of the parameters of instructions."""

from typing import Any

from kubealign_services.scoring.verifiers.instructions.instruction import (
    AT_LEAST,
    LESS_THAN,
    ParameterType,
    quoted_list,
)


def whole_number(minimum: int) -> ParameterType:
    """Return the type of whole numbers from `minimum` on; 3.0 is one, as data frames write it."""

    def read(value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise ValueError
        return value

    return ParameterType(f"a whole number of {minimum} or more", read)


def one_of(*values: str) -> ParameterType:
    """Return the type of some texts."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in values:
            raise ValueError
        return value

    return ParameterType(f"one of {quoted_list(values)}", read)


def _read_text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value.strip()


def _read_texts(value: Any) -> list[str]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError
    for text in value:
        _read_text(text)
    return list(value)


def _read_character(value: Any) -> str:
    text = _read_text(value)
    if len(text) != 1:
        raise ValueError
    return text


COUNT = whole_number(0)
POSITION = whole_number(1)
RELATION = one_of(LESS_THAN, AT_LEAST)
TEXT = ParameterType("a text that is not blank", _read_text)
TEXTS = ParameterType("a list of one or more texts that are not blank", _read_texts)
CHARACTER = ParameterType("one character that is no white space", _read_character)

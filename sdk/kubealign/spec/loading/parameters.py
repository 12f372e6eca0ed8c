"""Parameters ${NAME} and ${NAME:-default} in the values of a document; $${ escapes ${."""

import re
from collections.abc import Mapping

#: Pattern of parameter names.
PARAMETER_NAME = r"[A-Za-z_][A-Za-z0-9_]*"

_REFERENCE = re.compile(
    rf"\$\$\{{|\$\{{(?P<name>{PARAMETER_NAME})(?::-(?P<default>[^}}]*))?\}}|\$\{{[^}}]*\}}?"
)


class MissingParameter(LookupError):
    """A value names a parameter that has neither a value nor a default."""


class MalformedParameter(ValueError):
    """Text that begins like a parameter but is not one."""


def substitute(text: str, parameters: Mapping[str, str], used: set[str]) -> str:
    """Replace the parameters in a text.

    Args:
        used: Receives the names of all parameters in the text, including missing ones.

    Raises:
        MissingParameter: Names every missing parameter.
        MalformedParameter: A reference is malformed.
    """
    missing: list[str] = []

    def value(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        name = match["name"]
        if name is None:
            raise MalformedParameter(
                f"{match[0]} is not a parameter: write ${{NAME}} or ${{NAME:-default}}, or $${{ for "
                "a literal ${"
            )
        used.add(name)
        if name in parameters:
            return parameters[name]
        if match["default"] is not None:
            return match["default"]
        missing.append(name)
        return ""

    result = _REFERENCE.sub(value, text)
    if missing:
        names = ", ".join(dict.fromkeys(missing))
        remedy = " ".join(f"--param {name}=VALUE" for name in dict.fromkeys(missing))
        raise MissingParameter(f"needs the parameter {names}: give {remedy}")
    return result

"""${NAME} and ${NAME:-default} in the values of a document; $${ stands for ${ itself."""

import re
from collections.abc import Mapping

#: What a parameter may be called.
NAME = r"[A-Za-z_][A-Za-z0-9_]*"

_REFERENCE = re.compile(rf"\$\$\{{|\$\{{(?P<name>{NAME})(?::-(?P<default>[^}}]*))?\}}|\$\{{[^}}]*\}}?")


class MissingParameter(LookupError):
    """A value names a parameter that was not given and has no default."""


class MalformedParameter(ValueError):
    """Something that begins like a parameter and is none."""


def substitute(text: str, parameters: Mapping[str, str], used: set[str]) -> str:
    """The text with its parameters filled in; their names are added to `used`, the missing ones too.

    Raises MissingParameter, which names every missing one, or MalformedParameter.
    """
    missing: list[str] = []

    def value(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        name = match["name"]
        if name is None:
            raise MalformedParameter(
                f"{match[0]} is no parameter: write ${{NAME}} or ${{NAME:-default}}, or $${{ for ${{ itself"
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

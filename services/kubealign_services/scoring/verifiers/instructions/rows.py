"""Instructions of a row: the ids of one column with the parameters of the other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from kubealign_services.scoring.verifiers.contract import UnusableRow
from kubealign_services.scoring.verifiers.instructions.instruction import Instruction, InstructionVerdict
from kubealign_services.scoring.verifiers.instructions.registry import INSTRUCTIONS

#: Most characters of a value in an error.
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True)
class RowInstruction:
    """Instruction of a row. `check`: takes the response."""

    id: str
    check: Callable[[str], InstructionVerdict]


def read_instructions(
    row: Mapping[str, Any], ids_column: str, kwargs_column: str
) -> list[RowInstruction] | None:
    """Return the instructions of a row; None where a column is null or there are no ids.

    Raises UnusableRow.
    """
    ids, arguments = row[ids_column], row[kwargs_column]
    if ids is None or arguments is None:
        return None
    if not isinstance(ids, list | tuple):
        raise UnusableRow(f"{ids_column} is {_shown(ids)}; it must be a list of {_ids()}")
    if not isinstance(arguments, list | tuple) or len(arguments) != len(ids):
        raise UnusableRow(
            f"{kwargs_column} is {_shown(arguments)}; it must be a list with one object for each of the "
            f"{len(ids)} entries of {ids_column}"
        )
    entries = [
        _read_instruction(identifier, given, f"{ids_column}[{index}]", f"{kwargs_column}[{index}]")
        for index, (identifier, given) in enumerate(zip(ids, arguments, strict=True))
    ]
    return entries or None


def _read_instruction(identifier: Any, given: Any, id_path: str, path: str) -> RowInstruction:
    instruction = INSTRUCTIONS.get(identifier) if isinstance(identifier, str) else None
    if instruction is None:
        raise UnusableRow(f"{id_path} is {_shown(identifier)}; it must be one of {_ids()}")
    return RowInstruction(
        identifier, partial(instruction.check, **_read(instruction, identifier, given, path))
    )


def _read(instruction: Instruction, identifier: str, given: Any, path: str) -> dict[str, Any]:
    """Return the values of the parameters. Raises UnusableRow."""
    if not isinstance(given, Mapping | None):
        raise UnusableRow(
            f"{path} is {_shown(given)}; it must be an object with the parameters of {identifier}"
        )
    present = {name: value for name, value in (given or {}).items() if value is not None}
    unknown = sorted(str(name) for name in present if name not in instruction.parameters)
    if unknown:
        raise UnusableRow(
            f"{path}.{unknown[0]} is {_shown(present[unknown[0]])}; the parameters of {identifier} are: "
            f"{', '.join(instruction.parameters) or 'none'}"
        )
    values: dict[str, Any] = {}
    for name, kind in instruction.parameters.items():
        if name not in present:
            raise UnusableRow(f"{path}.{name} is missing; {identifier} needs it: {kind.allowed}")
        try:
            values[name] = kind.read(present[name])
        except ValueError as error:
            raise UnusableRow(
                f"{path}.{name} is {_shown(present[name])}; it must be {kind.allowed}"
            ) from error
    if instruction.limit is not None:
        smaller, larger = instruction.limit
        if values[smaller] > values[larger]:
            raise UnusableRow(
                f"{path}.{smaller} is {values[smaller]}; it must be at most {larger}, {values[larger]}"
            )
    return values


def _ids() -> str:
    return ", ".join(INSTRUCTIONS)


def _shown(value: Any) -> str:
    return repr(value)[:_SHOWN_CHARACTERS]

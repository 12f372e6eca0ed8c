"""Selection of the assistant messages that are imitated. Pure."""

from collections.abc import Sequence

from kubealign.spec.sections.data import ImitatedTurns
from kubealign_services.data.rows.row_reader import RowReader
from kubealign_services.data.rows.example import Message


def select_imitated_turns(messages: Sequence[Message], turns: ImitatedTurns, cells: RowReader, column: str) -> list[int]:
    """Return the indices of the imitated messages, at least one.

    Raises DataError for a weight that is neither 0 nor 1, where all are 0, and for an assistant that
    speaks first.
    """
    assistant = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if turns is ImitatedTurns.LAST:
        return assistant[-1:]
    weighted = turns is ImitatedTurns.WEIGHTED
    selected = [
        index for index in assistant if not weighted or _has_weight(messages[index], index, cells, column)
    ]
    if not selected:
        raise cells.error(column, "every message of the assistant has weight: 0: none is left to imitate")
    if selected[0] == 0:
        raise cells.error(column, "there is no message before the assistant's first, which is to be imitated")
    return selected


def _has_weight(message: Message, index: int, cells: RowReader, column: str) -> bool:
    weight = message.get("weight", 1)
    if weight not in (0, 1):
        raise cells.error(column, f"message {index + 1} has weight: {weight!r}; it may be 0 or 1")
    return bool(weight)

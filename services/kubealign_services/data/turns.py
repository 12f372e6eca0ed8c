"""Which of the assistant's messages are imitated. Pure."""

from collections.abc import Sequence

from kubealign.spec.data import Turns
from kubealign_services.data.cells import Cells
from kubealign_services.data.example import Message


def imitated(messages: Sequence[Message], turns: Turns, cells: Cells, column: str) -> list[int]:
    """Indices of the messages, at least one. Raises DataError for a weight that is neither 0 nor 1, where
    all are 0, and for an assistant that speaks first."""
    own = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if turns is Turns.LAST:
        return own[-1:]
    weighted = turns is Turns.WEIGHTED
    chosen = [index for index in own if not weighted or _weighs(messages[index], index, cells, column)]
    if not chosen:
        raise cells.error(column, "every message of the assistant says weight: 0: there is none to imitate")
    if chosen[0] == 0:
        raise cells.error(column, "there is no message before the assistant's first, which is to be imitated")
    return chosen


def _weighs(message: Message, index: int, cells: Cells, column: str) -> bool:
    weight = message.get("weight", 1)
    if weight not in (0, 1):
        raise cells.error(column, f"message {index + 1} says weight: {weight!r}; it may be 0 or 1")
    return bool(weight)

"""Algorithms of other packages."""

from enum import StrEnum
from typing import Any, ClassVar

from pydantic import Field

from kubealign.spec.algorithms.method import Offline
from kubealign.spec.algorithms.on_policy import Clipped
from kubealign.spec.base import ShortText

_NAME = "Name of its entry point in the group kubealign.algorithms."
_PARAMETERS = "The algorithm's own fields; it checks them when the job starts."


class Custom(Clipped):
    """An algorithm of another package that learns from its own samples."""

    name: ShortText = Field(description=_NAME)
    parameters: dict[str, Any] = Field(default_factory=dict, max_length=256, description=_PARAMETERS)

    @property
    def plugin(self) -> str:
        return self.name


class RowKind(StrEnum):
    """The member of spec.data."""

    DEMONSTRATIONS = "Demonstrations"
    PREFERENCES = "Preferences"
    RATINGS = "Ratings"
    UNPAIRED = "Unpaired"


class CustomOffline(Offline):
    """An algorithm of another package that learns from given rows."""

    turns: ClassVar[bool] = True
    teacher: ClassVar[bool] = False

    name: ShortText = Field(description=_NAME)
    parameters: dict[str, Any] = Field(default_factory=dict, max_length=256, description=_PARAMETERS)
    rows: RowKind = Field(RowKind.DEMONSTRATIONS, description="What it learns from.")
    reference: bool = Field(False, description="Whether it needs a reference's log-probabilities.")

    @property
    def plugin(self) -> str:
        return self.name

    @property
    def data(self) -> str:
        return self.rows.value.lower()

    @property
    def uses_reference(self) -> bool:
        return self.reference

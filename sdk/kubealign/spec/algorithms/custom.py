"""Specs of algorithms from other packages."""

from enum import StrEnum
from typing import Any, ClassVar

from pydantic import Field

from kubealign.spec.algorithms.base import OfflineSpec
from kubealign.spec.algorithms.on_policy import ClippedRatioSpec
from kubealign.spec.base import ShortText

_NAME = "Name of the algorithm's entry point in the group kubealign.algorithms."
_PARAMETERS = "The algorithm's own parameters; the plugin validates them when the job starts."


class CustomSpec(ClippedRatioSpec):
    """Plugin algorithm that learns from its own samples."""

    name: ShortText = Field(description=_NAME)
    parameters: dict[str, Any] = Field(default_factory=dict, max_length=256, description=_PARAMETERS)

    @property
    def plugin(self) -> str:
        return self.name

    @property
    def credits_steps(self) -> bool:
        """True: the plugin can read the rewards of steps."""
        return True


class RowKind(StrEnum):
    """Member of spec.data that the algorithm reads."""

    DEMONSTRATIONS = "Demonstrations"
    PREFERENCES = "Preferences"
    RATINGS = "Ratings"
    UNPAIRED = "Unpaired"


class CustomOfflineSpec(OfflineSpec):
    """Plugin algorithm that learns from given rows."""

    turns: ClassVar[bool] = True
    teacher: ClassVar[bool] = False

    name: ShortText = Field(description=_NAME)
    parameters: dict[str, Any] = Field(default_factory=dict, max_length=256, description=_PARAMETERS)
    rows: RowKind = Field(RowKind.DEMONSTRATIONS, description="Kind of rows that the algorithm learns from.")
    reference: bool = Field(
        False, description="Compute the reference policy's log-probabilities for the algorithm."
    )

    @property
    def plugin(self) -> str:
        return self.name

    @property
    def data(self) -> str:
        return self.rows.value.lower()

    @property
    def uses_reference(self) -> bool:
        return self.reference

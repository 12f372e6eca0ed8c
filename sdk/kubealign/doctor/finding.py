"""Result of one check."""

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """Status of a check. MISSING: jobs do not run without it. WARNING: they run with restrictions."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True)
class Finding:
    """Result of one check. `detail`: observed state; `remedy`: what to do, empty for OK."""

    what: str
    health: Health
    detail: str
    remedy: str = ""


def ok(what: str, detail: str) -> Finding:
    return Finding(what, Health.OK, detail)


def warning(what: str, detail: str, remedy: str) -> Finding:
    return Finding(what, Health.WARNING, detail, remedy)


def missing(what: str, detail: str, remedy: str) -> Finding:
    return Finding(what, Health.MISSING, detail, remedy)

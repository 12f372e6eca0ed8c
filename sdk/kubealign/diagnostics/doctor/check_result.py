"""Result of one check."""

from dataclasses import dataclass
from enum import StrEnum


class CheckStatus(StrEnum):
    """Status of a check. MISSING: jobs do not run without it. WARNING: they run with restrictions."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True)
class CheckResult:
    """Result of one check. `detail`: observed state; `remedy`: what to do, empty for OK."""

    what: str
    health: CheckStatus
    detail: str
    remedy: str = ""


def ok(what: str, detail: str) -> CheckResult:
    return CheckResult(what, CheckStatus.OK, detail)


def warning(what: str, detail: str, remedy: str) -> CheckResult:
    return CheckResult(what, CheckStatus.WARNING, detail, remedy)


def missing(what: str, detail: str, remedy: str) -> CheckResult:
    return CheckResult(what, CheckStatus.MISSING, detail, remedy)

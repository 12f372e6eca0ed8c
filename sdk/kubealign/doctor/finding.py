"""One thing that was looked at."""

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """MISSING: jobs do not run without it. WARNING: they do, with less, or not all of them."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True)
class Finding:
    """`detail`: what was found; `remedy`: what to do, empty where all is well."""

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

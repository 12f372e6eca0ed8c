"""Spans of time as kubectl writes them: short, and no finer than anybody reads."""

from datetime import UTC, datetime

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_YEAR = 365 * _DAY


def span(seconds: float) -> str:
    """`45s`, `3m20s`, `42m`, `5h12m`, `30h`, `3d4h`, `90d`, `3y40d`"""
    whole = max(0, int(seconds))
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    if whole < 10 * _MINUTE:
        return _two(whole, _MINUTE, "m", 1, "s")
    if whole < 3 * _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < 8 * _HOUR:
        return _two(whole, _HOUR, "h", _MINUTE, "m")
    if whole < 2 * _DAY:
        return f"{whole // _HOUR}h"
    if whole < 8 * _DAY:
        return _two(whole, _DAY, "d", _HOUR, "h")
    if whole < 2 * _YEAR:
        return f"{whole // _DAY}d"
    return _two(whole, _YEAR, "y", _DAY, "d")


def age(since: datetime | None, now: datetime | None = None) -> str:
    """The span from then until now; `-` where nobody knows."""
    if since is None:
        return "-"
    return span(((now or datetime.now(UTC)) - since).total_seconds())


def _two(whole: int, large: int, large_name: str, small: int, small_name: str) -> str:
    rest = whole % large // small
    return f"{whole // large}{large_name}" + (f"{rest}{small_name}" if rest else "")

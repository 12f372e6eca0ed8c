"""Formats durations like kubectl: short, and with limited precision."""

from datetime import UTC, datetime

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_YEAR = 365 * _DAY


def format_duration(seconds: float) -> str:
    """Format a duration: `45s`, `3m20s`, `42m`, `5h12m`, `30h`, `3d4h`, `90d`, `3y40d`."""
    total = max(0, int(seconds))
    if total < 2 * _MINUTE:
        return f"{total}s"
    if total < 10 * _MINUTE:
        return _two_units(total, _MINUTE, "m", 1, "s")
    if total < 3 * _HOUR:
        return f"{total // _MINUTE}m"
    if total < 8 * _HOUR:
        return _two_units(total, _HOUR, "h", _MINUTE, "m")
    if total < 2 * _DAY:
        return f"{total // _HOUR}h"
    if total < 8 * _DAY:
        return _two_units(total, _DAY, "d", _HOUR, "h")
    if total < 2 * _YEAR:
        return f"{total // _DAY}d"
    return _two_units(total, _YEAR, "y", _DAY, "d")


def format_age(since: datetime | None, now: datetime | None = None) -> str:
    """Format the time since `since`; `-` if it is unknown."""
    if since is None:
        return "-"
    return format_duration(((now or datetime.now(UTC)) - since).total_seconds())


def _two_units(total: int, large: int, large_name: str, small: int, small_name: str) -> str:
    remainder = total % large // small
    return f"{total // large}{large_name}" + (f"{remainder}{small_name}" if remainder else "")

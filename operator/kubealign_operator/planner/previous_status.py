"""Parses the status that a job already has, whoever wrote it."""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from kubealign.spec.status import AlignmentJobStatus, Condition, CredentialsStatus, StartTurnStatus
from kubealign_operator.kube_views.lenient_json import mapping, timestamp

#: Greatest value of a counter: a greater one was not written by the operator.
_MAX_COUNT = 2**31 - 1
_TIMES = ("start_time", "completion_time", "active_since", "starting_since")
_COUNTS = (
    "step",
    "max_steps",
    "weight_version",
    "restarts",
    "restarts_since_step",
    "rollout_replicas",
    "observed_generation",
)
_METRICS = ("reward", "kl", "active_seconds")


def parse_previous_status(status: object) -> AlignmentJobStatus:
    """Parse the previous status. A field with a senseless value counts as absent."""
    fields: dict[str, Any] = dict(mapping(status))
    while True:
        try:
            parsed = AlignmentJobStatus.model_validate(fields)
        except ValidationError as error:
            bad = {str(details["loc"][0]) for details in error.errors() if details["loc"]}
            valid = {name: value for name, value in fields.items() if name not in bad}
            fields = valid if len(valid) < len(fields) else {}
        else:
            return _sanitize(parsed)


def _sanitize(status: AlignmentJobStatus) -> AlignmentJobStatus:
    changed: dict[str, Any] = {name: timestamp(getattr(status, name)) for name in _TIMES}
    changed |= {name: _count(getattr(status, name)) for name in _COUNTS}
    changed |= {name: _finite_number(getattr(status, name)) for name in _METRICS}
    attempts: Mapping[str, int] = status.attempts or {}
    changed["attempts"] = {
        name: count for name, value in attempts.items() if (count := _count(value))
    } or None
    # The API server keeps one condition of each type.
    conditions = {
        condition.type: condition.model_copy(update={"last_transition_time": at})
        for condition in reversed(status.conditions or [])
        if (at := timestamp(condition.last_transition_time)) is not None
    }
    changed["conditions"] = [*reversed(conditions.values())] or None
    changed["credentials"] = _credentials(status.credentials)
    changed["start_turn"] = _start_turn(status.start_turn)
    document = status.document
    is_usable = document is not None and 0 < document.generation < _MAX_COUNT
    changed["document"] = document if is_usable else None
    return status.model_copy(update=changed)


def _credentials(credentials: CredentialsStatus | None) -> CredentialsStatus | None:
    if credentials is None or not 0 < credentials.generation < _MAX_COUNT:
        return None
    times = {name: timestamp(getattr(credentials, name)) for name in ("issued_at", "expires_at")}
    return credentials.model_copy(update=times)


def _start_turn(turn: StartTurnStatus | None) -> StartTurnStatus | None:
    if turn is None:
        return None
    times = {name: timestamp(getattr(turn, name)) for name in ("waiting_since", "held_since", "ended_at")}
    return turn.model_copy(update=times)


def condition_of(status: AlignmentJobStatus, kind: str) -> Condition | None:
    """Return the condition of this type, or None."""
    return next((condition for condition in status.conditions or [] if condition.type == kind), None)


def active_seconds(status: AlignmentJobStatus, now: datetime) -> float:
    """Return the seconds that the job has been active, without suspensions."""
    since = 0.0 if status.active_since is None else (now - status.active_since).total_seconds()
    return (status.active_seconds or 0.0) + max(0.0, since)


def _count(value: int | None) -> int | None:
    return None if value is None or not 0 <= value <= _MAX_COUNT else value


def _finite_number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

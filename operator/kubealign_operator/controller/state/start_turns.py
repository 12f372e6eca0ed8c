"""Turns of all jobs to start: those that their statuses record, and those that are being written."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from kubealign_operator.controller.kube.ownership import JobKey
from kubealign_operator.controller.state.cache import WatchedJob
from kubealign_operator.kube_views.lenient_json import get_path, timestamp
from kubealign_operator.kube_views.observed_job import StartingJob

#: Waiting jobs that are reconciled when the turn changes. The message of the others is older, by a resync.
_MAX_NOTIFIED = 20
_LAST = datetime.max.replace(tzinfo=UTC)


class StartTurns:
    """The jobs that wait for their turn to start, or have it.

    Several jobs are reconciled at the same time, each with what it has observed before. `claim` is called
    between the plan of a job and its execution, so that two of them never begin a turn. A turn that is being
    written counts as long as its job is not planned again: the API server may have stored it although no
    answer came.

    Args:
        on_change: Called for the jobs whose turn may come, or whose message may change.
    """

    def __init__(self, on_change: Callable[[JobKey], None]) -> None:
        self._on_change = on_change
        self._recorded: dict[JobKey, StartingJob] = {}
        self._planned: dict[JobKey, StartingJob | None] = {}
        self._failing: set[JobKey] = set()

    def observe(self, key: JobKey, job: WatchedJob | None) -> None:
        """Store the turn that the status of a job records. None: the job is gone."""
        before = self._entry(key)
        is_starting = job is not None and not job.is_deleting and not job.is_dispatched
        recorded = _parse(key, job.uid, job.status) if job is not None and is_starting else None
        self._set_recorded(key, recorded)
        if not is_starting:
            self._planned.pop(key, None)
            self._failing.discard(key)
        self._notify(key, before)

    def others(self, key: JobKey) -> tuple[StartingJob, ...]:
        """Return all other jobs that wait for their turn, or have it."""
        return tuple(entry for other, entry in self._entries().items() if other != key)

    def claim(self, key: JobKey, uid: str, status: Mapping[str, Any]) -> bool:
        """Announce the status that is about to be written.

        Returns:
            False when it begins a turn, and another job has begun one since this job was observed.
        """
        planned, recorded = _parse(key, uid, status), self._recorded.get(key)
        begins = _is_held(planned) and not _is_held(recorded)
        if begins and any(_is_held(other) for other in self.others(key)):
            return False
        if planned is None and recorded is None and key not in self._planned and key not in self._failing:
            return True
        before = self._entry(key)
        self._failing.discard(key)
        self._planned[key] = planned
        self._notify(key, before)
        return True

    def confirm(self, key: JobKey) -> None:
        """Forget the planned turn: its status has been written."""
        before = self._entry(key)
        self._planned.pop(key, None)
        self._notify(key, before)

    def exclude(self, key: JobKey) -> None:
        """Let no other job wait for this one, whose reconcile fails, until its next plan."""
        before = self._entry(key)
        self._failing.add(key)
        self._notify(key, before)

    def _set_recorded(self, key: JobKey, turn: StartingJob | None) -> None:
        if turn is None:
            self._recorded.pop(key, None)
        else:
            self._recorded[key] = turn

    def _entries(self) -> dict[JobKey, StartingJob]:
        keys = {**self._recorded, **self._planned}
        return {key: entry for key in keys if (entry := self._entry(key)) is not None}

    def _entry(self, key: JobKey) -> StartingJob | None:
        """Return what other jobs see of a job: a turn counts from its plan until its end is written."""
        if key in self._failing:
            return None
        recorded, planned = self._recorded.get(key), self._planned.get(key)
        if recorded is None or planned is None:
            return recorded or planned
        return replace(
            planned,
            waiting_since=planned.waiting_since or recorded.waiting_since,
            held_since=planned.held_since or recorded.held_since,
        )

    def _notify(self, key: JobKey, before: StartingJob | None) -> None:
        """Notify the jobs that have the turn, or wait for it, of a change of another job's turn."""
        if self._entry(key) == before:
            return
        entries = {other: entry for other, entry in self._entries().items() if other != key}
        holders = [other for other, entry in entries.items() if entry.held_since is not None]
        waiting = sorted(
            (other for other in entries if other not in holders),
            key=lambda other: (entries[other].waiting_since or _LAST, other.namespace, other.name),
        )
        for other in (*holders, *islice(waiting, _MAX_NOTIFIED)):
            self._on_change(other)


def _parse(key: JobKey, uid: str, status: Mapping[str, Any]) -> StartingJob | None:
    """Return the turn of a job; None: it neither waits for one nor has it."""
    turn = status.get("startTurn")
    waiting, held = timestamp(get_path(turn, "waitingSince")), timestamp(get_path(turn, "heldSince"))
    if waiting is None and held is None:
        return None
    return StartingJob(key.namespace, key.name, uid, waiting, held)


def _is_held(turn: StartingJob | None) -> bool:
    return turn is not None and turn.held_since is not None

"""Errors of refused object creations, which the planner shows in the job's status."""

from collections.abc import Mapping

_NONE: Mapping[str, str] = {}


class Refusals:
    """Errors by uid of the job and name of the object. Lost with the process: the next attempt restores them.
    """

    def __init__(self) -> None:
        self._held: dict[str, dict[str, str]] = {}

    def of(self, uid: str) -> Mapping[str, str]:
        return dict(self._held.get(uid, _NONE))

    def replace(self, uid: str, refused: Mapping[str, str]) -> bool:
        """Replace the errors of a job by those of the last reconcile.

        Returns:
            True when they differ, so that the status will change.
        """
        before = self._held.get(uid, _NONE)
        if refused:
            self._held[uid] = dict(refused)
        else:
            self._held.pop(uid, None)
        return dict(before) != dict(refused)

    def keep_only(self, uids: set[str]) -> None:
        """Forget all jobs except these."""
        for uid in self._held.keys() - uids:
            del self._held[uid]

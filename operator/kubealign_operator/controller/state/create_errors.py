"""Errors of refused object creations, which the planner shows in the job's status."""

from collections.abc import Mapping

_NONE: Mapping[str, str] = {}


class CreateErrors:
    """Errors by uid of the job and name of the object. Lost at a restart: the next attempt restores them."""

    def __init__(self) -> None:
        self._errors: dict[str, dict[str, str]] = {}

    def get(self, uid: str) -> Mapping[str, str]:
        return dict(self._errors.get(uid, _NONE))

    def replace(self, uid: str, errors: Mapping[str, str]) -> bool:
        """Replace the errors of a job by those of the last reconcile.

        Returns:
            True when they differ, so that the status will change.
        """
        before = self._errors.get(uid, _NONE)
        if errors:
            self._errors[uid] = dict(errors)
        else:
            self._errors.pop(uid, None)
        return dict(before) != dict(errors)

    def keep_only(self, uids: set[str]) -> None:
        """Forget all jobs except these."""
        for uid in self._errors.keys() - uids:
            del self._errors[uid]

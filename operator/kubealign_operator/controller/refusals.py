"""What the API server refused to create, and why: the renderer tells it in the job's status."""

from collections.abc import Mapping

_NONE: Mapping[str, str] = {}


class Refusals:
    """By uid of the job and name of the object. Lost with the process: the next try brings it back."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, str]] = {}

    def of(self, uid: str) -> Mapping[str, str]:
        return dict(self._held.get(uid, _NONE))

    def replace(self, uid: str, refused: Mapping[str, str]) -> bool:
        """All that the last look was refused. True: it differs from before, so the status will."""
        before = self._held.get(uid, _NONE)
        if refused:
            self._held[uid] = dict(refused)
        else:
            self._held.pop(uid, None)
        return dict(before) != dict(refused)

    def keep_only(self, uids: set[str]) -> None:
        """Forget the jobs that are gone."""
        for uid in self._held.keys() - uids:
            del self._held[uid]

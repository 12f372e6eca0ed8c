"""The last steps of the jobs that people look at, read once and kept up."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kubealign.client.records import JobRecord, JobRef
from kubealign.client.site import Site
from kubealign.read_model import BEGINNING, StepMetrics

_STEPS = 1000
_JOBS = 64
_PAGE = 5000


@dataclass
class _Kept:
    uid: str
    after: str = BEGINNING
    steps: deque[StepMetrics] = field(default_factory=lambda: deque(maxlen=_STEPS))


class RecentSteps:
    """Of a bounded number of jobs, those looked at last; each asked for what is new alone."""

    def __init__(self, reader: Site) -> None:
        self._reader = reader
        self._jobs: OrderedDict[JobRef, _Kept] = OrderedDict()

    async def of(self, record: JobRecord) -> Sequence[StepMetrics]:
        """The last thousand, oldest first. Raises what the reader raises."""
        kept = self._jobs.get(record.ref)
        if kept is None or kept.uid != record.uid:
            kept = self._jobs[record.ref] = _Kept(record.uid)
        self._jobs.move_to_end(record.ref)
        while len(self._jobs) > _JOBS:
            self._jobs.popitem(last=False)
        while True:
            after = kept.after
            page = await self._reader.metrics(record.ref, after, _PAGE)
            if kept.after != after:
                # Another request has read the same meanwhile.
                continue
            kept.steps.extend(page)
            if page:
                kept.after = page[-1].entry
            if len(page) < _PAGE:
                return list(kept.steps)

"""A cache of the last steps of jobs that are viewed; each request only reads new entries."""

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
    """The last steps of a bounded number of jobs, least recently used first out."""

    def __init__(self, reader: Site) -> None:
        self._reader = reader
        self._jobs: OrderedDict[JobRef, _Kept] = OrderedDict()

    async def of(self, record: JobRecord) -> Sequence[StepMetrics]:
        """Return the last thousand steps, oldest first. Raises the errors of the reader."""
        job_steps = self._jobs.get(record.ref)
        if job_steps is None or job_steps.uid != record.uid:
            job_steps = self._jobs[record.ref] = _Kept(record.uid)
        self._jobs.move_to_end(record.ref)
        while len(self._jobs) > _JOBS:
            self._jobs.popitem(last=False)
        while True:
            after = job_steps.after
            page = await self._reader.metrics(record.ref, after, _PAGE)
            if job_steps.after != after:
                # A concurrent request has read the same page.
                continue
            job_steps.steps.extend(page)
            if page:
                job_steps.after = page[-1].entry
            if len(page) < _PAGE:
                return list(job_steps.steps)

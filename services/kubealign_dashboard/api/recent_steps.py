"""A cache of the last steps of jobs that are viewed; each request only reads new entries."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kubealign.client.backends.base import JobBackend
from kubealign.client.records import JobRecord, JobRef
from kubealign.read_model import STREAM_START, StepMetrics

_MAX_STEPS = 1000
_MAX_JOBS = 64
_PAGE_SIZE = 5000


@dataclass
class _JobSteps:
    uid: str
    after: str = STREAM_START
    steps: deque[StepMetrics] = field(default_factory=lambda: deque(maxlen=_MAX_STEPS))


class RecentSteps:
    """The last steps of a bounded number of jobs, least recently used first out."""

    def __init__(self, reader: JobBackend) -> None:
        self._reader = reader
        self._jobs: OrderedDict[JobRef, _JobSteps] = OrderedDict()

    async def get(self, record: JobRecord) -> Sequence[StepMetrics]:
        """Return the last thousand steps, oldest first. Raises the errors of the reader."""
        job_steps = self._jobs.get(record.ref)
        if job_steps is None or job_steps.uid != record.uid:
            job_steps = self._jobs[record.ref] = _JobSteps(record.uid)
        self._jobs.move_to_end(record.ref)
        while len(self._jobs) > _MAX_JOBS:
            self._jobs.popitem(last=False)
        while True:
            after = job_steps.after
            page = await self._reader.metrics(record.ref, after, _PAGE_SIZE)
            if job_steps.after != after:
                # A concurrent request has read the same page.
                continue
            if not page:
                return list(job_steps.steps)
            job_steps.steps.extend(page)
            job_steps.after = page[-1].entry

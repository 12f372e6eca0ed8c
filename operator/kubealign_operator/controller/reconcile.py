"""One look at a job: observe, render, act. And the workers that do it over and over."""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from kubealign.roles import Process
from kubealign.spec.status import JobPhase
from kubealign_operator.controller.acting import Actor, Stale
from kubealign_operator.controller.cache import HeldJob, Jobs, Pods
from kubealign_operator.controller.circles import circle
from kubealign_operator.controller.existence import Existence
from kubealign_operator.controller.failures import ApiAway, ApiFailure, NotLeading
from kubealign_operator.controller.metrics import Metrics
from kubealign_operator.controller.progress import SPEAKING, NoProgress, ProgressReader
from kubealign_operator.controller.queue import WorkQueue
from kubealign_operator.controller.refusals import Refusals
from kubealign_operator.controller.resources import Key
from kubealign_operator.controller.views import job_view
from kubealign_operator.render.names import DRIVER, PROCESS_LABEL
from kubealign_operator.render.observed import Observed, PodView
from kubealign_operator.render.rendered import Rendered

log = logging.getLogger(__name__)

#: What a look at a job comes to, at this time.
Render = Callable[[Sequence[Process], Observed, datetime], Rendered]

# After our own writes, whose echo on the watch tells us nothing new: one more look, together with what the
# cluster makes of them.
_SETTLE_SECONDS = 1.0


class Reconciler:
    """Level-triggered: it works from what is there now, and forgetting all it knows costs only calls."""

    def __init__(
        self,
        jobs: Jobs,
        pods: Pods,
        existence: Existence,
        refusals: Refusals,
        progress: NoProgress | ProgressReader,
        actor: Actor,
        render: Render,
        queue: WorkQueue[Key],
        metrics: Metrics,
    ) -> None:
        self._jobs = jobs
        self._pods = pods
        self._existence = existence
        self._refusals = refusals
        self._progress = progress
        self._actor = actor
        self._render = render
        self._queue = queue
        self._metrics = metrics

    async def work(self) -> None:
        """One worker, until cancelled."""
        while True:
            key = await self._queue.get()
            began = time.monotonic()
            try:
                await self._look(key)
            finally:
                self._queue.done(key)
                self._metrics.reconciled(time.monotonic() - began)

    async def _look(self, key: Key) -> None:
        """Whatever goes wrong with one job costs that job a pause, and the others nothing."""
        try:
            settled = await self.reconcile(key)
        except Stale as error:
            log.debug("%s changed meanwhile: %s", key, error)
            self._failed(key, "Stale")
        except ApiAway as error:
            log.warning("%s: %s", key, error, extra={"job": str(key)})
            self._failed(key, "ApiAway")
        except ApiFailure as error:
            level = logging.WARNING if error.passing else logging.ERROR
            log.log(level, "%s: %s", key, error, extra={"job": str(key)})
            self._failed(key, error.reason, error.retry_after or 0.0)
        except NotLeading:
            raise
        except Exception:
            log.exception("%s: a fault of the operator", key, extra={"job": str(key)})
            self._failed(key, "Fault")
        else:
            if settled:
                self._queue.forget(key)
            else:
                self._queue.retry(key)

    async def reconcile(self, key: Key) -> bool:
        """False: something was refused, and is to be tried again after a pause.

        Raises Stale, and what Api raises."""
        held = self._jobs.get(key)
        if held is None or held.deleting:
            return True
        observed = await self._observe(key, held)
        if self._jobs.get(key) is not held:
            raise Stale("seen anew while its objects were asked for")
        wanted = self._render(held.processes, observed, datetime.now(UTC))
        done = await self._actor.act(key, held, wanted)
        if self._refusals.replace(held.uid, done.refused):
            # The refusal, or its end, belongs into the status at once.
            self._queue.add(key)
        elif done.wrote:
            self._queue.add_after(key, _SETTLE_SECONDS)
        if wanted.again_after is not None:
            self._queue.add_after(key, max(0.0, wanted.again_after))
        return not done.refused

    async def _observe(self, key: Key, held: HeldJob) -> Observed:
        needed = {name: self._jobs.get(Key(key.namespace, name)) for name in held.needs}
        objects = await self._existence.of(key, held)
        if held.phase in SPEAKING and any(_ended_driver(pod) for pod in self._pods.of(key)):
            await self._progress.refresh(key, held.uid)
        return Observed(
            job=held.job,
            pods=self._pods.of(key),
            objects=objects,
            refusals=self._refusals.of(held.uid),
            dependencies={name: job_view(found.job) if found else None for name, found in needed.items()},
            circle=circle(key.name, lambda name: self._awaited(Key(key.namespace, name))),
            progress=self._progress.of(held.uid),
        )

    def _awaited(self, key: Key) -> frozenset[str]:
        """The jobs that one waits for, or would."""
        held = self._jobs.get(key)
        return frozenset() if held is None or held.phase == JobPhase.SUCCEEDED else frozenset(held.needs)

    def _failed(self, key: Key, reason: str, at_least: float = 0.0) -> None:
        self._metrics.failed(reason)
        self._queue.retry(key, at_least)


def _ended_driver(pod: PodView) -> bool:
    return pod.labels.get(PROCESS_LABEL) == DRIVER and pod.phase in ("Succeeded", "Failed")

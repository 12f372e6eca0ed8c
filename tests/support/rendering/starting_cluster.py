"""A simulated cluster around one of several jobs that start one at a time."""

from dataclasses import dataclass, replace
from typing import Any

from kubealign_operator.kube_views.observed_job import ObservedState, StartingJob
from kubealign_operator.manifests.context import Platform
from kubealign_operator.planner.plan import ReconcilePlan
from support.rendering.cluster import Cluster
from support.rendering.jobs import PLATFORM, Json, alignment_job, sft

ONE_AT_A_TIME = replace(PLATFORM, start_one_at_a_time=True, start_turn_seconds=300)


def training(name: str, ranks: int = 2, **changes: Any) -> Json:
    """Return an SFT job with a uid of its own."""
    job = alignment_job(name, sft(trainer={"ranks": ranks}, **changes)["spec"])
    job["metadata"]["uid"] = f"uid-{name}"
    return job


@dataclass
class StartingCluster(Cluster):
    """`starting` are the other jobs as the operator observes them; `plan` is executed by the next step."""

    platform: Platform = ONE_AT_A_TIME
    starting: tuple[StartingJob, ...] = ()
    plan: ReconcilePlan | None = None

    def observed(self) -> ObservedState:
        return replace(super().observed(), starting_jobs=self.starting)

    def rendered(self) -> ReconcilePlan:
        plan, self.plan = self.plan or super().rendered(), None
        return plan

    @property
    def turn(self) -> Json:
        """status.startTurn; empty: none."""
        turn: Json = self.job.get("status", {}).get("startTurn", {})
        return turn

    def prepare_only(self) -> None:
        """Let the job prepare its data. The operator has not seen the end of it."""
        self.settle()
        self.serve()
        self.end(self.name("prepare"), 0)

    def prepare(self) -> None:
        """Let the job prepare its data, and the operator see the end of it."""
        self.prepare_only()
        self.settle()

    def processes(self) -> set[str]:
        """Return the processes that have pods, but preparation."""
        return set(self.short_names()) - {"prepare"}

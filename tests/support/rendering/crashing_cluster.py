"""A simulated cluster whose operator ends between two writes."""

from kubealign_operator.planner.plan import ReconcilePlan
from support.rendering.cluster import Cluster


class OperatorCrash(Exception):
    """The operator ended between two writes."""


class CrashingCluster(Cluster):
    """A cluster whose operator ends after a number of writes."""

    def step_until(self, writes: int) -> ReconcilePlan:
        """Plan once, and execute only the first writes in the executor's order.

        Raises OperatorCrash before the write after them.
        """
        plan = self.rendered()
        pods = [item for item in plan.create if item["kind"] == "Pod"]
        objects = [item for item in plan.create if item["kind"] != "Pod"]
        credentials = [] if plan.credentials is None else [plan.credentials]
        actions = [
            *([lambda: self.job.update(status=plan.status)] if plan.status != self.job.get("status") else []),
            *(lambda need=need: self.objects.add(("Secret", need.name)) for need in credentials),
            *(
                lambda item=item: self._delete(item.name, item.uid, item.grace_seconds)
                for item in plan.delete
            ),
            *(lambda item=item: self._create(item) for item in (*objects, *pods)),
        ]
        for index, action in enumerate(actions):
            if index == writes:
                raise OperatorCrash
            action()
        return plan

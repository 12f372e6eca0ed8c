"""What a workflow is."""

from typing import Protocol

from kubealign_services.rollout.workflow.episode import Episode


class WorkflowFailed(RuntimeError):
    """A workflow raised or did nothing. Its group is a failed one; the message says why."""


class Workflow(Protocol):
    """How a response comes about."""

    async def __call__(self, episode: Episode) -> None:
        """Make the response: have the policy generate at least once. Raises WorkflowFailed,
        RequestRefused."""

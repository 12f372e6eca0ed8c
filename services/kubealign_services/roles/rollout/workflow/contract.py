"""Workflow protocol."""

from typing import Protocol

from kubealign_services.roles.rollout.workflow.episode import Episode


class WorkflowFailed(RuntimeError):
    """A workflow raised an error or generated nothing. Its group fails with this message."""


class EpisodeWorkflow(Protocol):
    """Procedure that produces a response in several turns."""

    async def __call__(self, episode: Episode) -> None:
        """Produce the response: have the policy generate at least once, in the episode or a branch of it.

        Raises WorkflowFailed, RequestRefused.
        """

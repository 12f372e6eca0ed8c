"""Namespace of the real cluster whose jobs store all files in one folder of this machine."""

import json
from pathlib import Path
from typing import Any

from kubealign_services.checkpoints.history import read_history

from .cluster import Cluster
from .team import Team

#: The claim that the tenant's jobs name.
CLAIM = "arithmetic"
# Several pods that import torch at once are slow on two cores.
READY_SECONDS = 180.0


class Tenant(Team):
    """State of a tenant's jobs in the API and on the tenant's volume."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        """Create the claim CLAIM with `folder` as its volume."""
        super().__init__(cluster.control_plane, namespace)
        self.folder = folder
        cluster.volume(CLAIM, namespace, folder)

    def kubectl(self, *arguments: str, timeout: float = 60.0) -> str:
        """Run kubectl in the tenant's namespace."""
        return self.control_plane.kubectl("-n", self.namespace, *arguments, timeout=timeout)

    def status(self, job: str) -> dict[str, Any]:
        """Return the status of a job; empty until the operator has written one."""
        job_status: dict[str, Any] = self.job(job).get("status", {})
        return job_status

    def message(self, job: str) -> str:
        return str(self.status(job).get("message", ""))

    def step(self, job: str) -> int:
        """Return the last step in the status; 0 before the first."""
        return int(self.status(job).get("step") or 0)

    def run_folder(self, job: str) -> Path:
        """Return the run directory of a job on this machine."""
        return self.folder / "runs" / f"{job}-{self.job(job)['metadata']['uid'][:8]}"

    def history(self, job: str) -> list[dict[str, Any]]:
        """Return the history of a job: one line for each trained step."""
        return [json.loads(line.to_line()) for line in read_history(self.run_folder(job))]

    def left(self, kinds: str) -> list[str]:
        """Return KIND/NAME of all objects of these kinds that belong to a job."""
        return self.kubectl("get", kinds, "-l", "kubealign.dev/job", "-o", "name").split()

    def until_phase(self, name: str, phase: str, seconds: float = READY_SECONDS) -> None:
        """Wait for a phase. Fails at once, with the job's message, where the job has failed instead."""

        def has_phase() -> bool:
            status = self.status(name)
            seen = status.get("phase")
            assert seen != "Failed" or phase == "Failed", f"{name} failed: {status.get('message')}"
            return bool(seen == phase)

        self.until(has_phase, f"{name} to be {phase}", seconds)

    def until_beyond(self, job: str, step: int, why: str, seconds: float = READY_SECONDS) -> None:
        """Wait until the job has done more than `step` steps."""

        def beyond() -> bool:
            status = self.status(job)
            assert status.get("phase") != "Failed", f"{job} failed: {status.get('message')}"
            return int(status.get("step") or 0) > step

        self.until(beyond, f"{job} to go on beyond step {step} {why}", seconds)

    def until_message(self, job: str, *parts: str, seconds: float = READY_SECONDS) -> None:
        """Wait until the job's message contains every one of `parts`."""

        def has_parts() -> bool:
            message = self.message(job)
            return all(part in message for part in parts)

        self.until(has_parts, f"the message of {job} to hold {', '.join(parts)}", seconds)

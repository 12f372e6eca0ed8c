"""A namespace of the real cluster, whose jobs keep everything in one folder of this machine."""

import json
from pathlib import Path
from typing import Any

from .cluster import Cluster
from .team import Team

#: The claim that the tenant's jobs name.
CLAIM = "arithmetic"
# A pod that imports torch while others do takes its time on two cores.
READY_SECONDS = 180.0


class Tenant(Team):
    """What there is of a tenant's jobs: in the API, and on its volume."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        """`folder` becomes the volume of the claim CLAIM."""
        super().__init__(cluster.control_plane, namespace)
        self.folder = folder
        cluster.volume(CLAIM, namespace, folder)

    def kubectl(self, *arguments: str, timeout: float = 60.0) -> str:
        """kubectl in the tenant's namespace."""
        return self.control_plane.kubectl("-n", self.namespace, *arguments, timeout=timeout)

    def status(self, job: str) -> dict[str, Any]:
        """Empty as long as the operator has said nothing."""
        held: dict[str, Any] = self.job(job).get("status", {})
        return held

    def message(self, job: str) -> str:
        return str(self.status(job).get("message", ""))

    def step(self, job: str) -> int:
        """The last step that the status tells; 0 before the first."""
        return int(self.status(job).get("step") or 0)

    def run_folder(self, job: str) -> Path:
        """Where the job's run lies on this machine."""
        return self.folder / "runs" / f"{job}-{self.job(job)['metadata']['uid'][:8]}"

    def history(self, job: str) -> list[dict[str, Any]]:
        """A line for each step that was trained."""
        text = (self.run_folder(job) / "history.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def left(self, kinds: str) -> list[str]:
        """KIND/NAME of what belongs to any job."""
        return self.kubectl("get", kinds, "-l", "kubealign.dev/job", "-o", "name").split()

    def until_phase(self, name: str, phase: str, seconds: float = READY_SECONDS) -> None:
        """Fails at once, with the job's own words, where the job has failed instead."""

        def there() -> bool:
            status = self.status(name)
            seen = status.get("phase")
            assert seen != "Failed" or phase == "Failed", f"{name} failed: {status.get('message')}"
            return bool(seen == phase)

        self.until(there, f"{name} to be {phase}", seconds)

    def until_beyond(self, job: str, step: int, why: str, seconds: float = READY_SECONDS) -> None:
        """Wait until the job has done more than so many steps."""

        def beyond() -> bool:
            status = self.status(job)
            assert status.get("phase") != "Failed", f"{job} failed: {status.get('message')}"
            return int(status.get("step") or 0) > step

        self.until(beyond, f"{job} to go on beyond step {step} {why}", seconds)

    def until_message(self, job: str, *parts: str, seconds: float = READY_SECONDS) -> None:
        """Wait until the job's message holds every one of `parts`."""

        def told() -> bool:
            message = self.message(job)
            return all(part in message for part in parts)

        self.until(told, f"the message of {job} to hold {', '.join(parts)}", seconds)

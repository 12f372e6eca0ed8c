"""Devices that the processes of a job need on one machine. Pure."""

from collections.abc import Iterator, Sequence

from kubealign.local.processes.devices import DeviceRequest
from kubealign.process_settings import Role
from kubealign.role_specs import ComputePhase
from kubealign.roles import Process
from kubealign.spec.job import AlignmentJob


def device_requests(job: AlignmentJob, processes: Sequence[Process]) -> Iterator[DeviceRequest]:
    """Yield a request for each unit of processes that compute with a model.

    The rollout workers come last, by index, so that a worker that is added or removed changes the devices of
    no other process.
    """
    units: dict[str, list[Process]] = {}
    for process in sorted(processes, key=_position):
        if process.role_spec.compute is not None and _has_model(job, process):
            units.setdefault(process.unit, []).append(process)
    for members in units.values():
        yield DeviceRequest(tuple(process.name for process in members), _devices_per_process(job, members[0]))


def _position(process: Process) -> tuple[bool, int, int]:
    is_rollout = process.group == Role.ROLLOUT
    return is_rollout, process.replica if is_rollout else 0, process.rank if is_rollout else 0


def _has_model(job: AlignmentJob, process: Process) -> bool:
    """Return True unless the process scores with a function, or generates with a server of its own."""
    rollout = job.spec.effective_rollout
    if process.group == Role.ROLLOUT and rollout is not None and rollout.engine.openai is not None:
        return False
    if process.role_spec.compute is not ComputePhase.SCORING or process.reward is None:
        return True
    reward = next((each for each in job.spec.rewards if each.name == process.reward), None)
    return reward is not None and bool(reward.models)


def _devices_per_process(job: AlignmentJob, process: Process) -> int:
    """Return the number of devices of one process: several for engines that run their own ranks."""
    rollout = job.spec.effective_rollout
    if process.group != Role.ROLLOUT or rollout is None or rollout.engine.torch is not None:
        return 1
    return int(getattr(rollout.engine.value, "tensor_parallel", 1))

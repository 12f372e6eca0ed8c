"""GPUs of this machine or container, and their division among processes."""

import logging
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

log = logging.getLogger(__name__)

#: Variable that restricts the GPUs that a process sees, to indices or UUIDs.
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_QUERY = ("nvidia-smi", "-L")
_QUERY_SECONDS = 30.0
_GPU_LINE = re.compile(r"GPU (\d+):")
_SLICE_LINE = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")


@dataclass(frozen=True)
class DeviceRequest:
    """Processes that start together, each of which needs devices.

    Attributes:
        processes: Names of the processes.
        devices: Devices for each process.
    """

    processes: tuple[str, ...]
    devices: int = 1


def visible_devices(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the GPUs that this process may use, as values for CUDA_VISIBLE_DEVICES; empty: none.

    A GPU that is divided by MIG counts as its slices.
    """
    restriction = environment.get(VISIBLE_DEVICES)
    if restriction is not None:
        listed = [device.strip() for device in restriction.split(",")]
        # CUDA ignores what follows an invalid entry.
        invalid = next((index for index, device in enumerate(listed) if device in ("", "-1")), len(listed))
        return tuple(listed[:invalid])
    try:
        output = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_QUERY_SECONDS, check=True)
    except FileNotFoundError:
        return ()
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("the GPUs cannot be listed, so none is assigned: %s", error)
        return ()
    return parse_device_list(output.stdout)


def parse_device_list(text: str) -> tuple[str, ...]:
    """Return the GPUs in the output of `nvidia-smi -L`, the slices of each divided GPU in its place."""
    devices: list[str] = []
    undivided: str | None = None
    for line in text.splitlines():
        if match := _GPU_LINE.match(line):
            undivided = match[1]
            devices.append(undivided)
        elif match := _SLICE_LINE.match(line):
            if devices and devices[-1] == undivided:
                devices.pop()
                undivided = None
            devices.append(match[1])
    return tuple(devices)


def divide_devices(devices: Sequence[str], processes: int) -> list[tuple[str, ...]]:
    """Return the devices of each of several processes: equal shares, or one in turn where there are fewer
    devices than processes.
    """
    if not devices:
        return [()] * processes
    each = len(devices) // processes
    if each == 0:
        return [(devices[index % len(devices)],) for index in range(processes)]
    return [tuple(devices[index * each : (index + 1) * each]) for index in range(processes)]


def assign_devices(devices: Sequence[str], requests: Iterable[DeviceRequest]) -> dict[str, tuple[str, ...]]:
    """Return the devices of each process, so that all devices are used by about as many processes.

    The processes of one request have different devices where there are enough of them: NCCL refuses two
    ranks on one device. A request does not depend on later ones.

    Args:
        devices: All devices; empty: no process has any.
    """
    if not devices:
        return {}
    users = dict.fromkeys(devices, 0)
    assigned: dict[str, tuple[str, ...]] = {}
    for request in requests:
        count = min(request.devices, len(devices))
        free = list(devices)
        for process in request.processes:
            if len(free) < count:
                free = list(devices)
            chosen = sorted(free, key=users.__getitem__)[:count]
            for device in chosen:
                users[device] += 1
                free.remove(device)
            assigned[process] = tuple(sorted(chosen, key=list(devices).index))
    return assigned


def device_environment(devices: Sequence[str]) -> dict[str, str]:
    """Return the environment variable for a process with these devices; empty: it sees all there are."""
    return {VISIBLE_DEVICES: ",".join(devices)} if devices else {}

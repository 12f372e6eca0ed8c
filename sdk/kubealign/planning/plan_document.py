"""Plan as plain data for JSON output; amounts in bytes, times in seconds."""

from collections.abc import Mapping
from typing import Any

from kubealign.planning.job_plan import JobPlan
from kubealign.planning.machine import Machine


def plan_document(plan: JobPlan, machine: Machine, remedies: Mapping[str, str]) -> dict[str, Any]:
    """Return one job's plan as plain data.

    Args:
        remedies: Remedy by process group, for groups that do not fit.
    """
    work, refit = plan.work, plan.refit
    return {
        "job": plan.name,
        "weights": plan.weights,
        "fits": plan.fits(machine),
        "devices": plan.devices,
        "deviceBytes": machine.memory,
        "tokens": {
            "prompt": work.prompt,
            "response": work.response,
            "sequencesPerStep": work.sequences,
            "updatesPerStep": work.updates,
            "assumed": list(work.assumed),
        },
        "processes": [
            {
                "group": need.group,
                "processes": need.processes,
                "devicesEach": need.devices,
                "height": need.peak.name,
                "parts": dict(need.peak.parts),
                "bytes": need.peak.total,
                "fits": need.peak.total <= machine.memory,
                "host": dict(need.host),
                "notes": list(need.notes),
                "remedy": remedies.get(need.group),
            }
            for need in plan.requirements
        ],
        "sentByARankEachStep": [
            {
                "group": group,
                "direction": each.direction,
                "bytes": each.sent,
                "seconds": each.seconds,
                "withinNode": each.is_within_node,
            }
            for group, transfers in plan.traffic.items()
            for each in transfers
        ],
        "refit": None
        if refit is None
        else {
            "bytes": refit.sent,
            "snapshotBytes": refit.snapshot,
            "sharedMemorySeconds": refit.shared_seconds,
            "streamSeconds": refit.stream_seconds,
        },
        "routingRecord": None
        if plan.record is None
        else {"bytesPerToken": plan.record.token, "bytesPerStep": plan.record.step},
    }

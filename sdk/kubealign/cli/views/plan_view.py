"""Displays a job's plan as tables and lines. Pure."""

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kubealign.cli.terminal import escape_control
from kubealign.cli.views.job_table import new_table
from kubealign.planning.byte_units import format_bytes
from kubealign.planning.job_plan import JobPlan
from kubealign.planning.machine import Machine
from kubealign.planning.memory.peak import ProcessRequirements


def plan_view(plan: JobPlan, machine: Machine, remedies: Mapping[str, str]) -> list[RenderableType]:
    """Return the plan. `remedies`: by process group, for groups that do not fit."""
    return [
        Text(_headline(plan), style="bold"),
        _needs_table(plan, machine),
        *_detail_lines(plan, machine, remedies),
    ]


def _headline(plan: JobPlan) -> str:
    work = plan.work
    return (
        f"{escape_control(plan.name)}: {_format_count(plan.weights)} weights, {plan.devices} devices, "
        f"{work.sequences} sequences of {work.prompt} + {work.response} tokens per step"
    )


def _format_count(weights: int) -> str:
    for unit, size in (("billion", 10**9), ("million", 10**6)):
        if weights >= size:
            return f"{weights / size:.1f} {unit}"
    return f"{weights:,}"


def _needs_table(plan: JobPlan, machine: Machine) -> Table:
    result = new_table(
        ["PROCESS", "COUNT", "DEVICES", "NEEDS", "FITS", "PEAK AT", "PEAK PARTS", "HOST"], last_folds=True
    )
    for need in plan.requirements:
        fits = need.peak.total <= machine.memory
        result.add_row(
            escape_control(need.group),
            str(need.processes),
            str(need.processes * need.devices),
            format_bytes(need.peak.total),
            Text("yes", style="green") if fits else Text("no", style="bold red"),
            need.peak.name,
            _format_parts(need.peak.parts),
            _format_parts(need.host),
        )
    return result


def _format_parts(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)


def _detail_lines(plan: JobPlan, machine: Machine, remedies: Mapping[str, str]) -> Iterator[RenderableType]:
    for group, transfers in plan.traffic.items():
        if transfers:
            text_of_transfers = "; ".join(
                f"{each.direction} {format_bytes(each.sent)}, {_format_seconds(each.seconds)} s "
                f"{'within a node' if each.is_within_node else 'between nodes'}"
                for each in transfers
            )
            yield Text(f"{group}, sent per rank and step: {text_of_transfers}")
    refit = plan.refit
    if refit is not None:
        yield Text(
            f"refit: {format_bytes(refit.sent)}; by shared memory {_format_seconds(refit.shared_seconds)} s, "
            f"by stream {_format_seconds(refit.stream_seconds)} s; "
            f"{format_bytes(refit.snapshot)} of snapshots on the trainer's host"
        )
    if plan.record is not None:
        yield Text(
            f"recorded experts: {format_bytes(plan.record.token)} per token, "
            f"{format_bytes(plan.record.step)} per step, once on the bus and once in the trainer's batch"
        )
    for text in plan.work.assumed:
        yield Text(f"assumed: {text}", style="dim")
    for need in plan.requirements:
        yield from _need_warnings(need, machine, remedies)


def _need_warnings(
    need: ProcessRequirements, machine: Machine, remedies: Mapping[str, str]
) -> Iterator[RenderableType]:
    for note in need.notes:
        yield Text(f"{escape_control(need.group)}: {note}", style="yellow")
    if need.peak.total > machine.memory:
        lacking = format_bytes(need.peak.total - machine.memory)
        remedy = escape_control(remedies.get(need.group, ""))
        yield Text(f"{escape_control(need.group)}: {lacking} too much; {remedy}", style="red")


def _format_seconds(value: float) -> str:
    """Format with two significant digits, the precision of the estimates."""
    return f"{value:.2g}" if value < 10 else f"{float(f'{value:.2g}'):.0f}"

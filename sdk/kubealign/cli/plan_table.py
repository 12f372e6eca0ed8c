"""Displays a job's plan as tables and lines. Pure."""

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kubealign.cli.job_table import table
from kubealign.cli.terminal import safe
from kubealign.plan.amounts import shown
from kubealign.plan.job_plan import JobPlan
from kubealign.plan.machine import Machine
from kubealign.plan.parts import Need


def plan_view(plan: JobPlan, machine: Machine, remedies: Mapping[str, str]) -> list[RenderableType]:
    """Return the plan. `remedies`: by process group, for groups that do not fit."""
    return [
        Text(_headline(plan), style="bold"),
        _needs(plan, machine),
        *_lines(plan, machine, remedies),
    ]


def _headline(plan: JobPlan) -> str:
    work = plan.work
    return (
        f"{safe(plan.name)}: {_count(plan.weights)} weights, {plan.devices} devices, "
        f"{work.sequences} sequences of {work.prompt} + {work.response} tokens per step"
    )


def _count(weights: int) -> str:
    for unit, size in (("billion", 10**9), ("million", 10**6)):
        if weights >= size:
            return f"{weights / size:.1f} {unit}"
    return f"{weights:,}"


def _needs(plan: JobPlan, machine: Machine) -> Table:
    result = table(
        ["PROCESS", "COUNT", "DEVICES", "NEEDS", "FITS", "PEAK AT", "PEAK PARTS", "HOST"], last_folds=True
    )
    for need in plan.needs:
        fits = need.moment.total <= machine.memory
        result.add_row(
            safe(need.group),
            str(need.processes),
            str(need.processes * need.devices),
            shown(need.moment.total),
            Text("yes", style="green") if fits else Text("no", style="bold red"),
            need.moment.name,
            _parts(need.moment.parts),
            _parts(need.host),
        )
    return result


def _parts(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {shown(size)}" for name, size in parts.items() if size)


def _lines(plan: JobPlan, machine: Machine, remedies: Mapping[str, str]) -> Iterator[RenderableType]:
    for group, transfers in plan.traffic.items():
        if transfers:
            text_of_transfers = "; ".join(
                f"{each.direction} {shown(each.sent)}, {_seconds(each.seconds)} s "
                f"{'within a node' if each.within else 'between nodes'}"
                for each in transfers
            )
            yield Text(f"{group}, sent per rank and step: {text_of_transfers}")
    refit = plan.refit
    if refit is not None:
        yield Text(
            f"refit: {shown(refit.sent)}; by shared memory {_seconds(refit.shared_seconds)} s, "
            f"by stream {_seconds(refit.stream_seconds)} s; "
            f"{shown(refit.snapshot)} of snapshots on the trainer's host"
        )
    for text in plan.work.assumed:
        yield Text(f"assumed: {text}", style="dim")
    for need in plan.needs:
        yield from _said_of(need, machine, remedies)


def _said_of(need: Need, machine: Machine, remedies: Mapping[str, str]) -> Iterator[RenderableType]:
    for note in need.notes:
        yield Text(f"{safe(need.group)}: {note}", style="yellow")
    if need.moment.total > machine.memory:
        lacking = shown(need.moment.total - machine.memory)
        remedy = safe(remedies.get(need.group, ""))
        yield Text(f"{safe(need.group)}: {lacking} too much; {remedy}", style="red")


def _seconds(value: float) -> str:
    """Format with two significant digits, the precision of the estimates."""
    return f"{value:.2g}" if value < 10 else f"{float(f'{value:.2g}'):.0f}"

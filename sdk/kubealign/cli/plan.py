"""`kubealign plan`: what a job needs, on paper."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from kubealign.cli.exits import ExitCode, refuse, told
from kubealign.cli.options import NoColor, Overrides, Parameters, RowFormat, parameters
from kubealign.plan.machine import Device

_MACHINE = "The machine"


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
    param: Parameters = [],  # noqa: B006 (typer copies it)
    set_: Overrides = [],  # noqa: B006
    config: Annotated[
        list[str],
        typer.Option(
            "--config",
            metavar="[MODEL=]FILE",
            help="A config.json, where a model cannot be read here: of policy, critic, reference, teacher or "
            "the reward of that name; without a name of every model that nothing else is said of.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    gpu_memory: Annotated[
        str,
        typer.Option("--gpu-memory", metavar="AMOUNT", help="Of one device.", rich_help_panel=_MACHINE),
    ] = "80GiB",
    gpus_per_node: Annotated[
        int, typer.Option("--gpus-per-node", min=1, help="Devices of one node.", rich_help_panel=_MACHINE)
    ] = 8,
    bandwidth: Annotated[
        str,
        typer.Option(
            "--bandwidth",
            metavar="AMOUNT",
            help="A second, of one device to other nodes, one way.",
            rich_help_panel=_MACHINE,
        ),
    ] = "50GB/s",
    node_bandwidth: Annotated[
        str,
        typer.Option(
            "--node-bandwidth",
            metavar="AMOUNT",
            help="A second, between two devices of a node, one way.",
            rich_help_panel=_MACHINE,
        ),
    ] = "450GB/s",
    copy_bandwidth: Annotated[
        str,
        typer.Option(
            "--copy-bandwidth",
            metavar="AMOUNT",
            help="A second, of one memory copy on the host.",
            rich_help_panel=_MACHINE,
        ),
    ] = "10GB/s",
    device: Annotated[
        Device,
        typer.Option(
            "--device", help="cpu: each process has --gpu-memory of its own.", rich_help_panel=_MACHINE
        ),
    ] = Device.GPU,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(
            "--prompt-tokens", min=1, help="Longest prompt, if not as the job says.", show_default=False
        ),
    ] = None,
    response_tokens: Annotated[
        int | None,
        typer.Option(
            "--response-tokens", min=1, help="Longest response, if not as the job says.", show_default=False
        ),
    ] = None,
    output: Annotated[RowFormat, typer.Option("--output", "-o", help="How it is shown.")] = RowFormat.TABLE,
    no_color: NoColor = False,
) -> None:
    """Say what each job of a file needs of a cluster's memory and wires, and whether it fits.

    Nothing is started and nothing is loaded: it is arithmetic. The defaults are a node of eight H100. Exit
    code 1 when a job does not fit; each process that does not comes with the fields to change.
    """
    from kubealign.cli.printing import as_json
    from kubealign.cli.terminal import console, show, without_color
    from kubealign.plan.amounts import parsed
    from kubealign.plan.document import document
    from kubealign.plan.errors import PlanError
    from kubealign.plan.job_plan import plan as planned
    from kubealign.plan.machine import Machine
    from kubealign.plan.models import Shapes
    from kubealign.plan.remedies import remedies
    from kubealign.spec.load import load_jobs

    with without_color(no_color), told():
        jobs = load_jobs(file, parameters(param), set_)
        try:
            machine = Machine(
                memory=parsed(gpu_memory, "--gpu-memory"),
                devices=gpus_per_node,
                link=parsed(node_bandwidth, "--node-bandwidth"),
                network=parsed(bandwidth, "--bandwidth"),
                copy=parsed(copy_bandwidth, "--copy-bandwidth"),
                device=device,
            )
            shapes = Shapes(_configs(config), jobs)
            again = partial(
                planned, shapes=shapes, machine=machine, prompt=prompt_tokens, response=response_tokens
            )
            plans = []
            for job in jobs:
                found = again(job)
                plans.append((found, remedies(job, found, again, machine.memory)))
        except PlanError as error:
            refuse(str(error))
        if output is RowFormat.JSON:
            typer.echo(as_json([document(found, machine, changes) for found, changes in plans]))
        else:
            from kubealign.cli.plan_table import plan_view

            for index, (found, changes) in enumerate(plans):
                show(console(), *([""] if index else []), *plan_view(found, machine, changes))
    if not all(found.fits(machine) for found, _ in plans):
        raise typer.Exit(ExitCode.FAILED)


def _configs(given: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
    """[MODEL=]FILE to the model's name (or "") -> what the file holds. Raises PlanError."""
    from kubealign.plan.models import read_config

    found = {}
    for text in given:
        name, equals, path = text.partition("=")
        found[name if equals else ""] = read_config(Path(path if equals else text))
    return found

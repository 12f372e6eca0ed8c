"""`kubealign plan`: estimates the resources of a job without running it."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from kubealign.cli.exit_codes import CliExitCode, exit_on_error, exit_with_error
from kubealign.cli.options import NoColor, Overrides, Parameters, RowFormat, parse_parameters
from kubealign.planning.machine import Device

_MACHINE_PANEL = "Machine"


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
    param: Parameters = [],  # noqa: B006 (typer copies it)
    set_: Overrides = [],  # noqa: B006
    config: Annotated[
        list[str],
        typer.Option(
            "--config",
            metavar="[MODEL=]FILE",
            help="config.json of a model that cannot be read here: of policy, critic, reference, teacher, "
            "teacher-NAME or the reward of that name; without MODEL, of every model without a file of its "
            "own.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    gpu_memory: Annotated[
        str,
        typer.Option(
            "--gpu-memory", metavar="AMOUNT", help="Memory of one device.", rich_help_panel=_MACHINE_PANEL
        ),
    ] = "80GiB",
    gpus_per_node: Annotated[
        int,
        typer.Option(
            "--gpus-per-node", min=1, help="Number of devices per node.", rich_help_panel=_MACHINE_PANEL
        ),
    ] = 8,
    bandwidth: Annotated[
        str,
        typer.Option(
            "--bandwidth",
            metavar="AMOUNT",
            help="Unidirectional bandwidth per second from one device to other nodes.",
            rich_help_panel=_MACHINE_PANEL,
        ),
    ] = "50GB/s",
    node_bandwidth: Annotated[
        str,
        typer.Option(
            "--node-bandwidth",
            metavar="AMOUNT",
            help="Unidirectional bandwidth per second between two devices of a node.",
            rich_help_panel=_MACHINE_PANEL,
        ),
    ] = "450GB/s",
    copy_bandwidth: Annotated[
        str,
        typer.Option(
            "--copy-bandwidth",
            metavar="AMOUNT",
            help="Bandwidth per second of a memory copy on the host.",
            rich_help_panel=_MACHINE_PANEL,
        ),
    ] = "10GB/s",
    device: Annotated[
        Device,
        typer.Option(
            "--device",
            help="Device type; with cpu, each process has --gpu-memory of its own.",
            rich_help_panel=_MACHINE_PANEL,
        ),
    ] = Device.GPU,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(
            "--prompt-tokens", min=1, help="Longest prompt; default: as in the job.", show_default=False
        ),
    ] = None,
    response_tokens: Annotated[
        int | None,
        typer.Option(
            "--response-tokens", min=1, help="Longest response; default: as in the job.", show_default=False
        ),
    ] = None,
    output: Annotated[RowFormat, typer.Option("--output", "-o", help="Output format.")] = RowFormat.TABLE,
    no_color: NoColor = False,
) -> None:
    """Estimate the memory and bandwidth that each job of a file needs of a cluster, and check that it fits.

    Nothing is started or loaded: the estimates are arithmetic. The defaults describe a node with eight
    H100. Exit code 1 if a job does not fit; each process that does not fit is listed with the fields to
    change.
    """
    from kubealign.cli.output import format_json
    from kubealign.cli.terminal import console, show, without_color
    from kubealign.planning.byte_units import parse_amount
    from kubealign.planning.errors import PlanError
    from kubealign.planning.job_plan import plan_job as planned
    from kubealign.planning.machine import Machine
    from kubealign.planning.model.shape_sources import ModelShapes
    from kubealign.planning.plan_document import plan_document
    from kubealign.planning.remedies import find_remedies
    from kubealign.spec.loading.loader import load_jobs

    with without_color(no_color), exit_on_error():
        jobs = load_jobs(file, parse_parameters(param), set_)
        try:
            machine = Machine(
                memory=parse_amount(gpu_memory, "--gpu-memory"),
                devices=gpus_per_node,
                link_rate=parse_amount(node_bandwidth, "--node-bandwidth"),
                network_rate=parse_amount(bandwidth, "--bandwidth"),
                copy_rate=parse_amount(copy_bandwidth, "--copy-bandwidth"),
                device=device,
            )
            shapes = ModelShapes(_read_configs(config), jobs)
            plan_job = partial(
                planned, shapes=shapes, machine=machine, prompt=prompt_tokens, response=response_tokens
            )
            plans = []
            for job in jobs:
                planned_job = plan_job(job)
                plans.append((planned_job, find_remedies(job, planned_job, plan_job, machine.memory)))
        except PlanError as error:
            exit_with_error(str(error))
        if output is RowFormat.JSON:
            typer.echo(
                format_json([plan_document(planned_job, machine, changes) for planned_job, changes in plans])
            )
        else:
            from kubealign.cli.views.plan_view import plan_view

            for index, (planned_job, changes) in enumerate(plans):
                show(console(), *([""] if index else []), *plan_view(planned_job, machine, changes))
    if not all(planned_job.fits(machine) for planned_job, _ in plans):
        raise typer.Exit(CliExitCode.FAILED)


def _read_configs(arguments: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
    """Read [MODEL=]FILE arguments; the key is empty for a file without a model. Raises PlanError."""
    from kubealign.planning.model.shape_sources import read_config

    configs = {}
    for text in arguments:
        name, equals, path = text.partition("=")
        configs[name if equals else ""] = read_config(Path(path if equals else text))
    return configs

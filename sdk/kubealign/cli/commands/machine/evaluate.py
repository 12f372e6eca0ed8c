"""`kubealign evaluate`: measures a model, or the checkpoints of a run, on held-out prompts."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kubealign.cli.exit_codes import CliExitCode, exit_on_error, exit_with_error
from kubealign.cli.options import MachineRunsDir, Overrides

if TYPE_CHECKING:
    from kubealign.local.display.terminal import LinesDisplay
    from kubealign.local.evaluation import EvaluatedRun


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL|RUN", show_default=False)],
    set_: Overrides = [],  # noqa: B006 (typer copies it)
    steps: Annotated[
        str | None,
        typer.Option(
            "--steps",
            metavar="all|N,N,...",
            help="Checkpoints of the run to evaluate; default: the newest.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="Name of the evaluation; default: MODEL-eval.", show_default=False
        ),
    ] = None,
    lm_eval: Annotated[
        Path | None,
        typer.Option(
            "--lm-eval",
            metavar="FILE",
            help="Measure by lm-eval instead, with this configuration of its own (tasks, num_fewshot, ...).",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
    runs_dir: MachineRunsDir = Path("runs"),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete an earlier evaluation of this name, and start again.")
    ] = False,
) -> None:
    """Measure a model folder, a model of the hub, or checkpoints of a run on this machine.

    A run is measured with its own validation, rewards and rollout settings; --set changes any of them, and
    names those of a model, as in --set spec.validation.data.prompts.source.path=held-out.jsonl. With
    --lm-eval the tasks of lm-evaluation-harness are measured instead. The same command continues an
    evaluation that was interrupted.
    """
    from rich.console import Console

    from kubealign.local.display.terminal import display_for
    from kubealign.local.errors import RunRefused
    from kubealign.local.evaluation import EvaluatedRun, find_run, model_document, select_steps
    from kubealign.local.export import exportable_steps
    from kubealign.local.runner.admission import run_directory
    from kubealign.local.runner.run_jobs import run_jobs
    from kubealign.replay.plan import ReplayError
    from kubealign.spec.algorithms.evaluation import RESULT_METRICS_FILE
    from kubealign.spec.loading.loader import load_jobs

    root = runs_dir.absolute()
    with exit_on_error():
        try:
            run = find_run(model, root)
            if run is None and steps is not None:
                raise ReplayError(f"--steps {steps}: {model} is no run, which would have checkpoints")
            name = name or _default_name(model)
            models = root / f"{name}-models"
            display = display_for(Console(stderr=True))
            if lm_eval is not None:
                if set_:
                    raise ReplayError("--set changes the spec of a job, and --lm-eval runs none: remove it")
                chosen = [] if run is None else select_steps(run, steps or str(exportable_steps(run)[-1]))
                of_run = None if run is None else EvaluatedRun(run, chosen)
                record = root / f"{name}.json"
                entries = _measure_by_lm_eval(model, of_run, lm_eval, record, models, fresh, display)
                _print_models(entries, as_json)
                return
            if run is None:
                document = model_document(name, model)
            else:
                chosen = select_steps(run, steps) if steps else [exportable_steps(run)[-1]]
                evaluated = EvaluatedRun(run, chosen)
                document = evaluated.document(name, {step: models / f"step-{step}" for step in chosen})
            # In the working folder, from which relative paths of --set are read.
            with tempfile.NamedTemporaryFile("w", dir=Path.cwd(), suffix=".yaml") as file:
                json.dump(document, file)
                file.flush()
                jobs = load_jobs(Path(file.name), overrides=set_)
            if run is not None:
                _export_all(evaluated, models, display)
            code = asyncio.run(run_jobs(jobs, root, fresh, display))
        except (ReplayError, RunRefused) as error:
            exit_with_error(str(error), CliExitCode.USAGE)
        except OSError as error:
            exit_with_error(f"the run directory cannot be used: {error}")
        if code != 0:
            raise typer.Exit(code)
        shutil.rmtree(models, ignore_errors=True)
    result = json.loads((run_directory(root, name).result / RESULT_METRICS_FILE).read_text())
    _print_models(result["models"], as_json, result)


def _print_models(
    models: Sequence[Mapping[str, Any]], as_json: bool, result: Mapping[str, Any] | None = None
) -> None:
    """Print the metrics of models.

    Args:
        result: Printed as JSON; None: the models alone.
    """
    from kubealign.cli.terminal import console, show
    from kubealign.cli.views.evaluation_view import evaluation_table

    if as_json:
        document = {"models": models} if result is None else result
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        show(console(), evaluation_table(models))


def _measure_by_lm_eval(
    model: str,
    evaluated: "EvaluatedRun | None",
    config_file: Path,
    record_file: Path,
    models: Path,
    fresh: bool,
    display: "LinesDisplay",
) -> list[dict[str, Any]]:
    """Measure a model, or the checkpoints of a run, by lm-eval, and return each one's step and metrics.

    Args:
        evaluated: Checkpoints of a run; None: `model` is a folder or a name on the hub.
        record_file: File of the metrics of earlier calls, to which those of this call are added.
        models: Folder for the exported checkpoints, which is removed at the end.
    """
    from kubealign.local.evaluation import EvaluatedRun
    from kubealign.local.lm_harness import LmEvalRecord, measure_model, read_config

    config = read_config(config_file)
    if fresh:
        record_file.unlink(missing_ok=True)
    record = LmEvalRecord(record_file)
    steps = [0] if evaluated is None else list(evaluated.steps)
    for step in (step for step in steps if step not in record.steps):
        source = model
        if evaluated is not None:
            _export_all(EvaluatedRun(evaluated.run, [step]), models, display)
            source = str(models / f"step-{step}")
        record.add(step, measure_model(source, config))
        shutil.rmtree(models, ignore_errors=True)
    return record.models(steps)


def _default_name(model: str) -> str:
    """Return a job name made from the last part of a path or a name on the hub."""
    letters = [letter if letter.isalnum() else "-" for letter in Path(model).name.lower()]
    return f"{''.join(letters).strip('-')}-eval"


def _export_all(evaluated: "EvaluatedRun", models: Path, display: "LinesDisplay") -> None:
    """Export the models that an earlier call has not exported. Raises Exit where an export fails."""
    from kubealign.local.export import export_model

    for step in evaluated.steps:
        target = models / f"step-{step}"
        if not target.exists() and export_model(evaluated.run, step, target, display) != 0:
            raise typer.Exit(CliExitCode.FAILED)

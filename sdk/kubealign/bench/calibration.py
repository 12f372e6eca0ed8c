"""Measurements for sizing rollout workers, from a calibration process or an existing run."""

import json
import os
import subprocess
import sys
from pathlib import Path

from kubealign.bench.from_run import measure_run
from kubealign.bench.measurements import SizingError, SizingMeasurements, StepShape
from kubealign.bench.report import BenchmarkError
from kubealign.library_environment import library_environment
from kubealign.local.processes.cpu import available_cores, computes_in_turns
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.spec_diff import read_job
from kubealign.replay.comparison import last_line_per_step
from kubealign.spec.base import field_alias
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.engines import Engine

_CALIBRATION = "kubealign_services.roles.calibration.main"
#: Allowance for importing, loading and preparing, besides the measured seconds.
_OVERHEAD_SECONDS = 1800.0


def run_calibration(
    job: AlignmentJob, mean_tokens: float | None, seconds: float, folder: Path
) -> SizingMeasurements:
    """Measure the job in a calibration subprocess that writes into `folder`.

    Raises SizingError for a job with parts that cannot be measured in one process, BenchmarkError with the
    cause where the calibration fails.
    """
    _check_measurable(job)
    token_limit = job.spec.rollout.sampling.max_tokens
    if mean_tokens is not None and mean_tokens > token_limit:
        raise SizingError(
            f"--mean-tokens {mean_tokens:g}: it may be 1 to {token_limit}, spec.rollout.sampling.maxTokens"
        )
    document, measurements_path = folder / "job.json", folder / "figures.json"
    document.write_text(job.model_dump_json(by_alias=True))
    threads = str(available_cores())
    command = [sys.executable, "-m", _CALIBRATION, str(document), str(folder / "run"), str(measurements_path)]
    command += ["--seconds", str(seconds), "--threads", threads]
    if mean_tokens is not None:
        command += ["--mean-tokens", str(mean_tokens)]
    variables = (
        os.environ
        | library_environment(exclusive_cores=computes_in_turns(job))
        | {"OMP_NUM_THREADS": threads}
    )
    try:
        completed = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=variables,
            timeout=_OVERHEAD_SECONDS + 10 * seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(
            f"the job could not be measured within {error.timeout:g} s: give a run of it as --from-run"
        ) from error
    if completed.returncode != 0:
        lines = completed.stderr.strip().splitlines()
        raise BenchmarkError(f"{job.name} could not be measured: {lines[-1] if lines else 'no error output'}")
    return SizingMeasurements.model_validate_json(measurements_path.read_text())


def _check_measurable(job: AlignmentJob) -> None:
    engine, backend = job.spec.rollout.engine, job.spec.trainer.backend
    text = "cannot be measured in one process: run a few steps of the job, and give that run as --from-run"
    if engine.torch is None or engine.torch.tensor_parallel > 1:
        raise SizingError(f"spec.rollout.engine.{field_alias(Engine, engine.member)}, as it is set, {text}")
    if backend.torch is None:
        raise SizingError(f"spec.trainer.backend.{backend.member} {text}")


def measure_existing_run(folder: RunDirectory) -> SizingMeasurements:
    """Derive the measurements from the steps of an existing run.

    Raises SizingError where its steps are insufficient.
    """
    recorded_job = read_job(folder.job)
    if recorded_job is None:
        raise SizingError(f"{folder.root} holds no run")
    try:
        lines = folder.metrics.read_text().splitlines(keepends=True)
    except FileNotFoundError:
        lines = []
    # The last line may still be incomplete: only complete lines end with a newline.
    steps = last_line_per_step(json.loads(line) for line in lines if line.endswith("\n"))
    max_tokens = recorded_job.spec.rollout.sampling.max_tokens
    return measure_run(str(folder.root), steps, StepShape.from_job(recorded_job), max_tokens)

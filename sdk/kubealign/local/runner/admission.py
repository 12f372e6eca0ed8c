"""Admission of jobs to run directories: earlier runs, cluster-only features and dependencies."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kubealign.local.errors import RunRefused
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.phase import derive_phase, read_run_facts
from kubealign.local.run_dir.spec_diff import forbidden_changes, read_job
from kubealign.local.run_dir.status import Phase, RunStatus, read_status
from kubealign.spec.dependencies import dependency_names, parent_name
from kubealign.spec.job import AlignmentJob
from kubealign.spec.paths import format_path
from kubealign.spec.sections.lifecycle import ManagedBy
from kubealign.spec.sections.optimizers import MomentStates
from kubealign.spec.status import JobPhase

_POLL_SECONDS = 0.5
#: Phases of a run that writes checkpoints, or is about to.
_ACTIVE_PHASES = (JobPhase.PENDING, JobPhase.STARTING, JobPhase.RUNNING, JobPhase.SUSPENDING)


@dataclass(frozen=True)
class AdmittedJob:
    """An admitted job, its run directory and the status of an earlier run (None on the first)."""

    job: AlignmentJob
    folder: RunDirectory
    previous_status: RunStatus | None
    #: The job has already succeeded and neither maxSteps nor maxEpochs has grown: nothing is left to do.
    is_finished: bool


def run_directory(runs_dir: Path, name: str) -> RunDirectory:
    """Return the run directory of the job with this name."""
    return RunDirectory(runs_dir / name)


def succeeded_in(runs_dir: Path) -> Callable[[str], bool]:
    """Return a predicate that tells by a job's name if its run in `runs_dir` has succeeded."""

    def succeeded(name: str) -> bool:
        status = read_status(run_directory(runs_dir, name).status)
        return status is not None and status.phase is Phase.SUCCEEDED

    return succeeded


def admit(job: AlignmentJob, folder: RunDirectory) -> AdmittedJob:
    """Admit the job to its run directory.

    Raises RunRefused where the directory holds a run of another job of this name, or the job asks for
    features that only a cluster has.
    """
    refuse_cluster_only(job)
    recorded_job = read_job(folder.job)
    status = read_status(folder.status)
    if recorded_job is None or status is None:
        return AdmittedJob(job, folder, None, is_finished=False)
    differences = forbidden_changes(recorded_job, job)
    if differences:
        raise RunRefused(
            f"{folder.root} holds a run of another {job.name}; it differs in {'; '.join(differences)}. "
            "Give the job another name or --runs-dir, or delete that run and start again with --fresh"
        )
    # A smaller number is a forbidden change, so a different one is greater.
    recorded_limits = (recorded_job.spec.max_steps, recorded_job.spec.max_epochs)
    wants_more_steps = (job.spec.max_steps, job.spec.max_epochs) != recorded_limits
    return AdmittedJob(
        job, folder, status, is_finished=status.phase is Phase.SUCCEEDED and not wants_more_steps
    )


def result_folders(job: AlignmentJob, runs_dir: Path) -> Mapping[str, Path]:
    """Return the result folder of each job that this one depends on, by job name."""
    return {name: run_directory(runs_dir, name).result for name in dependency_names(job)}


def parent_run(job: AlignmentJob, folder: RunDirectory, runs_dir: Path) -> Path | None:
    """Return the run directory from whose checkpoint the job starts; None: from its own weights.

    Raises RunRefused where it holds no run, lacks the checkpoint of the step, or is running where no step is
    named. A job that has taken the checkpoint over before needs it no more.
    """
    source = job.spec.checkpoint.source
    if source is None:
        return None
    field = "spec.checkpoint.from." + ("path" if source.job is None else "job.name")
    parent = run_directory(runs_dir, source.job.name) if source.job else RunDirectory(Path(source.path or ""))
    if folder.parent_record.exists() or folder.parent_checkpoint.exists():
        return parent.root
    if parent.root == folder.root:
        raise RunRefused(f"{job.name}: {field}: is the job itself: name another run")
    if not parent.job.exists():
        raise RunRefused(f"{job.name}: {field}: {parent.root} holds no run (it has no job.json)")
    problem = parent_step_problem(job, runs_dir)
    if problem is not None:
        raise RunRefused(f"{job.name}: {problem}")
    phase = derive_phase(read_run_facts(parent)).phase
    if phase in _ACTIVE_PHASES and source.step not in parent.checkpoint_steps():
        raise RunRefused(
            f"{job.name}: {field}: the run in {parent.root} is {phase}: suspend it, wait, or name the step "
            "of a checkpoint that it has"
        )
    return parent.root


def parent_step_problem(job: AlignmentJob, runs_dir: Path) -> str | None:
    """Return the error of the named step where the parent has no checkpoint of it and will write none.

    None: there is such a checkpoint, or may be one later; or no step is named, or there is no such run.
    """
    source = job.spec.checkpoint.source
    if source is None or source.step is None:
        return None
    parent = run_directory(runs_dir, source.job.name) if source.job else RunDirectory(Path(source.path or ""))
    if not parent.job.exists():
        return None
    steps = parent.checkpoint_steps()
    is_active = derive_phase(read_run_facts(parent)).phase in _ACTIVE_PHASES
    if source.step in steps or (is_active and source.step > max(steps, default=0)):
        return None
    missing = f"{parent.root} has no checkpoint of step {source.step}"
    return f"spec.checkpoint.from.step: {missing}; it has {parent.describe_checkpoints()}"


async def wait_for_dependencies(job: AlignmentJob, runs_dir: Path, stop: asyncio.Event) -> bool:
    """Wait for the results of all dependencies.

    Returns True when all results are present, False when `stop` is set first. Raises RunRefused for a
    dependency that failed or does not exist.
    """
    while list(pending_dependencies(job, runs_dir)):
        # Other runs report their state only through files, so they are polled.
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                await stop.wait()
        except TimeoutError:
            continue
        return False
    return not stop.is_set()


def pending_dependencies(job: AlignmentJob, runs_dir: Path) -> Iterator[tuple[str, JobPhase]]:
    """Yield (name, phase) of each dependency that has no result yet.

    Raises RunRefused for a dependency that failed or does not exist.
    """
    for name in sorted(dependency_names(job)):
        folder = run_directory(runs_dir, name)
        if not folder.job.exists():
            raise RunRefused(f"it needs the result of {name}, and there is no such job: submit {name} first")
        run_phase = derive_phase(read_run_facts(folder))
        if run_phase.phase is JobPhase.FAILED:
            raise RunRefused(f"it needs the result of {name}, which has failed: {run_phase.message}")
        if run_phase.phase is not JobPhase.SUCCEEDED:
            yield name, run_phase.phase
    parent = parent_name(job)
    if parent is not None and run_directory(runs_dir, parent).job.exists():
        folder, parent_folder = run_directory(runs_dir, job.name), run_directory(runs_dir, parent)
        phase = derive_phase(read_run_facts(parent_folder)).phase
        source = job.spec.checkpoint.source
        step = None if source is None else source.step
        has_started = folder.parent_record.exists() or folder.parent_checkpoint.exists()
        if phase in _ACTIVE_PHASES and not has_started and step not in parent_folder.checkpoint_steps():
            yield parent, phase


def refuse_cluster_only(job: AlignmentJob) -> None:
    """Raise RunRefused where the job uses features that a single machine does not have, or a package that is
    not installed.
    """
    problems = list(_problems(job))
    if problems:
        raise RunRefused("\n".join(f"{job.name}: {problem}" for problem in problems))


def _problems(job: AlignmentJob) -> Iterator[str]:
    if job.spec.suspend:
        yield "spec.suspend: is true, so it is not started: set it to false, or remove it"
    if job.spec.managed_by is ManagedBy.MULTIKUEUE:
        yield f"spec.managedBy: {ManagedBy.MULTIKUEUE.value} is for clusters: remove it to run the job here"
    source = job.spec.checkpoint.source
    if source is not None and source.volume is not None:
        yield (
            "spec.checkpoint.from.volume: volumes are for clusters: on one machine name a run directory, "
            "from: {path: runs/NAME}, or another job, from: {job: {name: NAME}}"
        )
    yield from _missing_packages(job)
    yield from _missing_mcp(job)
    yield from _missing_agents_token(job)
    yield from _missing_verifiers(job)
    rollout = job.spec.effective_rollout
    server = None if rollout is None else rollout.engine.openai
    if rollout is not None and server is not None and rollout.replicas > 1 and server.names_one_server:
        yield (
            f"spec.rollout.engine.openai.url: is {server.url}, into which all {rollout.replicas} workers of "
            "this machine would load weights: write {worker} in it, such as http://127.0.0.1:800{worker}, or "
            "set rollout.replicas to 1"
        )
    functions: list[tuple[str, Any]] = [
        (f"spec.rewards[{i}].function", reward.function) for i, reward in enumerate(job.spec.rewards)
    ]
    functions += [
        (format_path(("spec", *path, "function")), score.function)
        for rows in job.spec.held_out_rows
        for path, score in rows.score_fields()
    ]
    functions += [
        (format_path(("spec", "rollout", *path)), function) for path, function in job.spec.rollout.functions
    ]
    for path, function in functions:
        if function is not None and function.config_map is not None:
            source = function.config_map
            yield (
                f"{path}.configMap: ConfigMaps are for clusters ({source.key} of {source.name}): on "
                f"one machine name a file, function: "
                f"{{file: {{path: {source.key}, name: {source.function}}}}}"
            )


def _missing_mcp(job: AlignmentJob) -> Iterator[str]:
    """Yield the problem of MCP servers where their client is not installed."""
    tool_calls = None if job.spec.effective_rollout is None else job.spec.effective_rollout.tool_calls
    if tool_calls is not None and tool_calls.mcp_servers and find_spec("mcp") is None:
        yield (
            "spec.rollout.workflow.toolCalls.mcpServers: needs mcp, which is not installed here: pip install "
            "'kubealign[mcp]'"
        )


def _missing_agents_token(job: AlignmentJob) -> Iterator[str]:
    """Yield the problem of external agents without a token, which the workers inherit."""
    rollout = job.spec.effective_rollout
    agents = None if rollout is None else rollout.external_agents
    if agents is not None and not os.environ.get(agents.token_variable):
        yield (
            "spec.rollout.workflow.agent.external.tokenVariable: the environment variable "
            f"{agents.token_variable} is not set: export a secret token in it before the job starts"
        )


def _missing_verifiers(job: AlignmentJob) -> Iterator[str]:
    """Yield the problem of an environment of verifiers where the package is not installed."""
    rollout = job.spec.effective_rollout
    workflow = None if rollout is None else rollout.workflow
    agent = None if workflow is None else workflow.agent
    if agent is not None and agent.verifiers is not None and find_spec("verifiers") is None:
        yield (
            "spec.rollout.workflow.agent.verifiers: needs verifiers, which is not installed here: pip "
            "install 'kubealign[verifiers]'"
        )


def _missing_packages(job: AlignmentJob) -> Iterator[str]:
    """Yield the problem of each field that needs bitsandbytes where it is not installed."""
    if find_spec("bitsandbytes") is not None:
        return
    trained = {"trainer": job.spec.trainer} if job.spec.algorithm.value.trains else {}
    critic = job.spec.effective_critic
    for section, trainer in {**trained, **({} if critic is None else {"critic": critic})}.items():
        states = trainer.optimizer.adam_w.states
        if states is MomentStates.BLOCKWISE_8BIT:
            yield (
                f"spec.{section}.optimizer.adamW.states: {states.value} needs bitsandbytes, which is not "
                "installed here: pip install 'kubealign[bitsandbytes]', or write Float32"
            )
        quantization = None if trainer.lora is None else trainer.lora.quantization
        if quantization is not None:
            yield (
                f"spec.{section}.lora.quantization.{quantization.member}: needs bitsandbytes, which is not "
                "installed here: pip install 'kubealign[bitsandbytes]', or remove it"
            )

"""Evaluation of models on this machine: the job that measures a model, or the checkpoints of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubealign.local.export import exportable_steps
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.spec_diff import job_document, read_job
from kubealign.replay.plan import ReplayError
from kubealign.spec.job import API_VERSION, KIND

#: Sections of a run's spec that an evaluation of its models shares.
_SHARED_SECTIONS = ("seed", "policy", "rewards", "rollout", "validation", "lifecycle")

#: Fields of a validation, and of its sets, about the steps at which it is measured.
_SCHEDULE = frozenset({"everySteps", "atStart", "atEnd", "earlyStopping"})


@dataclass(frozen=True)
class EvaluatedRun:
    """A run whose models are evaluated. steps: those of the evaluated checkpoints, ascending."""

    run: RunDirectory
    steps: Sequence[int]

    def document(self, name: str, models: Mapping[int, Path]) -> dict[str, Any]:
        """Return the document of the job that evaluates the models with the run's own validation.

        Args:
            models: Step -> folder of the model, for each step.
        """
        job = read_job(self.run.job)
        assert job is not None
        dumped = job_document(job)["spec"]
        spec = {section: dumped[section] for section in _SHARED_SECTIONS}
        if job.spec.effective_rollout is not None:
            # Without a trainer the engine's precision would be the default.
            effective = job.spec.effective_rollout.model_dump(mode="json", by_alias=True)
            spec["rollout"] = effective | {"placement": "Own"}
        if spec["validation"] is not None:
            spec["validation"] = _without_schedule(spec["validation"])
        first, *later = self.steps
        spec["policy"] = {"model": {"path": str(models[first])}}
        checkpoints = [{"step": step, "model": {"path": str(models[step])}} for step in later]
        spec["algorithm"] = {"evaluate": {"step": first, "checkpoints": checkpoints}}
        return _job(name, spec)


def _without_schedule(validation: Mapping[str, Any]) -> dict[str, Any]:
    """Return a validation whose rows, those of the sets too, are measured on every model."""
    rest = {name: value for name, value in validation.items() if name not in _SCHEDULE}
    sets = [_without_schedule(entry) for entry in validation.get("sets") or ()]
    return rest | ({"sets": sets} if sets else {})


def find_run(target: str, runs_dir: Path) -> RunDirectory | None:
    """Return the run with this run directory, or of this name in `runs_dir`; None: there is none."""
    for root in (Path(target), runs_dir / target):
        if (root / "job.json").is_file():
            return RunDirectory(root)
    return None


def select_steps(run: RunDirectory, text: str) -> list[int]:
    """Return the steps of a run that `all`, or a list such as 20,40, selects; ascending.

    Raises ReplayError for a step without a checkpoint, and text that is no list of steps.
    """
    available = list(exportable_steps(run))
    if text == "all":
        return available
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ReplayError(f"--steps {text}: must be all, or numbers of steps such as 20,40")
    steps = sorted({int(part) for part in parts})
    missing = [step for step in steps if step not in available]
    if missing:
        raise ReplayError(
            f"--steps {text}: {run.root} has no checkpoint of step {missing[0]}; it has those of "
            f"{', '.join(map(str, available))}"
        )
    return steps


def model_document(name: str, model: str) -> dict[str, Any]:
    """Return the document of a job that evaluates a folder, or a repository of the hub.

    Raises ReplayError for a folder that holds no model, and a name that is neither.
    """
    folder = Path(model)
    if (folder / "config.json").is_file():
        source: dict[str, Any] = {"path": str(folder.absolute())}
    elif folder.exists():
        raise ReplayError(f"{model} holds neither a model (config.json) nor a run (job.json)")
    elif model.count("/") == 1 and not model.startswith((".", "/")):
        source = {"huggingFace": {"repo": model}}
    else:
        raise ReplayError(
            f"{model}: there is no such folder, no such run, and it is no name on the hub such as acme/sft-7b"
        )
    return _job(name, {"algorithm": {"evaluate": {}}, "policy": {"model": source}})


def _job(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}

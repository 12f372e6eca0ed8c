"""Rejection of job features that need a cluster. A podTemplate is not one of them: local runs ignore it."""

from collections.abc import Iterator
from typing import Any

from kubealign.local.errors import RunRefused
from kubealign.spec.job import AlignmentJob
from kubealign.spec.paths import format_path


def refuse_cluster_only(job: AlignmentJob) -> None:
    """Raise RunRefused where the job uses features that a single machine does not have."""
    problems = list(_problems(job))
    if problems:
        raise RunRefused("\n".join(f"{job.name}: {problem}" for problem in problems))


def _problems(job: AlignmentJob) -> Iterator[str]:
    if job.spec.suspend:
        yield "spec.suspend: is true, so it is not started: set it to false, or remove it"
    functions: list[tuple[str, Any]] = [
        (f"spec.rewards[{i}].function", reward.function) for i, reward in enumerate(job.spec.rewards)
    ]
    functions += [
        (f"spec.validation.sampling.scores[{i}].function", score.function)
        for i, score in enumerate(job.spec.validation_scores)
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

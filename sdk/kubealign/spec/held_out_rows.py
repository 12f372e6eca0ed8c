"""Held-out rows of a job: those of validation.data, and of each of its sets, with inherited settings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from kubealign.spec.benchmark_presets import preset_data, preset_sampling
from kubealign.spec.paths import DocumentPath, format_path
from kubealign.spec.sections.data import Data
from kubealign.spec.sections.rewards import Reward
from kubealign.spec.sections.validation import (
    Validation,
    ValidationSampling,
    ValidationScore,
    ValidationSet,
)

#: First part of the names of all validation metrics.
METRIC_PREFIX = "val/"


@dataclass(frozen=True)
class HeldOutRows:
    """Rows that are measured together.

    name: of the set; None: the rows of validation.data. path: of the section below spec that describes the
    rows, ("validation",) or ("validation", "sets", INDEX). rewards: names of the rewards that score sampled
    responses; None: all of the job. is_preset: data and sampling are those of a preset.
    """

    name: str | None
    path: DocumentPath
    data: Data
    sampling: ValidationSampling | None
    rewards: tuple[str, ...] | None
    every_steps: int | None
    at_start: bool
    at_end: bool
    group_by: str | None
    is_preset: bool = False

    @property
    def rows_path(self) -> DocumentPath:
        """Path below spec of the section with the source of the rows."""
        return (*self.path, "preset") if self.is_preset else (*self.path, "data", self.data.member)

    @property
    def sampling_path(self) -> DocumentPath:
        """Path below spec of the sampling."""
        return (*self.path, "sampling")

    @property
    def metric_prefix(self) -> str:
        """First part of the names of the metrics."""
        return METRIC_PREFIX if self.name is None else f"{METRIC_PREFIX}{self.name}/"

    @property
    def scores(self) -> tuple[ValidationScore, ...]:
        """Scores under the names of their processes, which are unique in the job."""
        scores = () if self.sampling is None else tuple(self.sampling.scores)
        if self.name is None:
            return scores
        return tuple(score.model_copy(update={"name": score_source(self.name, score)}) for score in scores)

    def score_metrics(self) -> dict[str, str]:
        """Return the name of each score's process -> its metric."""
        own = [] if self.sampling is None else self.sampling.scores
        return {
            score.name: f"{self.metric_prefix}{entry.name}"
            for score, entry in zip(self.scores, own, strict=True)
        }

    def score_fields(self) -> Iterator[tuple[DocumentPath, ValidationScore]]:
        """Yield (path below spec, score under the name of its process)."""
        for index, score in enumerate(self.scores):
            yield (*self.sampling_path, "scores", index), score

    def is_scored_by(self, reward: Reward) -> bool:
        """Return True if a reward of the job scores the responses."""
        return self.rewards is None or reward.name in self.rewards

    def field(self, *names: str | int) -> str:
        """Return the path in the document of a field of the section, such as spec.validation.groupBy."""
        return format_path(("spec", *self.path, *names))


def score_source(set_name: str, score: ValidationScore) -> str:
    """Return the name of the process of a set's score."""
    return f"{set_name}-{score.name}"


def list_held_out_rows(validation: Validation | None) -> tuple[HeldOutRows, ...]:
    """Return the rows of validation.data, if set, then those of its sets; none without a validation."""
    if validation is None:
        return ()
    own: tuple[HeldOutRows, ...] = ()
    if validation.data is not None:
        own = (
            HeldOutRows(
                None,
                ("validation",),
                validation.data,
                validation.sampling,
                None,
                validation.every_steps,
                validation.at_start,
                validation.at_end,
                validation.group_by,
            ),
        )
    sets = (_set_rows(validation, index, entry) for index, entry in enumerate(validation.sets))
    return tuple(chain(own, sets))


def _set_rows(validation: Validation, index: int, entry: ValidationSet) -> HeldOutRows:
    data, sampling = entry.data, entry.sampling
    if data is None:
        assert entry.preset is not None
        data, sampling = preset_data(entry.preset), preset_sampling(entry.preset, sampling)
    return HeldOutRows(
        entry.name,
        ("validation", "sets", index),
        data,
        sampling,
        tuple(entry.rewards),
        validation.every_steps if entry.every_steps is None else entry.every_steps,
        validation.at_start if entry.at_start is None else entry.at_start,
        validation.at_end if entry.at_end is None else entry.at_end,
        entry.group_by,
        is_preset=entry.preset is not None,
    )


def rows_of_metric(metric: str, rows: Sequence[HeldOutRows]) -> HeldOutRows | None:
    """Return the rows whose measurement has a metric; None: no rows have one of this name.

    A name that begins with no set's prefix is one of validation.data.
    """
    for entry in rows:
        if entry.name is not None and metric.startswith(entry.metric_prefix):
            return entry
    return next((entry for entry in rows if entry.name is None), None)

"""Measurements that a sizing is computed from, whatever their source."""

from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from kubealign.bench.engine_speed import EngineSpeed
from kubealign.bench.generation_time import StepWorkload
from kubealign.bench.response_lengths import ResponseLengths
from kubealign.bench.sizing import Sizing, StepCosts, recommend_workers
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.rollout import InFlightPolicy


class SizingError(Exception):
    """The job cannot be sized, or too little is known; the message gives the cause."""


class SizingMeasurements(BaseModel):
    """Measurements of one job.

    passes: (sequences running, seconds of a pass) of one worker's engine. Lengths are those of responses,
    in tokens. Seconds are per step: see `StepCosts`. assumed: assumptions in place of measurements.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    passes: list[tuple[int, float]]
    prompt_tokens_per_second: float | None = None
    prompt_tokens: float = 0.0
    mean_length: float = Field(ge=1)
    longest_length: int = Field(ge=1)
    length_spread: float = Field(ge=0)
    train_seconds: float = Field(ge=0)
    before_seconds: float = Field(0.0, ge=0)
    score_seconds: float = Field(0.0, ge=0)
    scoring_seconds: float = Field(0.0, ge=0)
    refit_seconds: float = Field(0.0, ge=0)
    rest_seconds: float = Field(0.0, ge=0)
    refit_bytes: int | None = None
    assumed: list[str] = []


@dataclass(frozen=True)
class StepShape:
    """Shape of a step of a job that samples in every step. samples: per prompt."""

    prompts: int
    samples: int
    max_sequences: int
    staleness: int
    flows: bool
    replicas: int

    @classmethod
    def from_job(cls, job: AlignmentJob) -> Self:
        """Derive the shape from a job. Raises SizingError for a job whose steps do not sample."""
        algorithm, rollout = job.spec.algorithm.value, job.spec.effective_rollout
        if not algorithm.online or rollout is None:
            raise SizingError(
                f"{job.name}: {job.spec.algorithm.member} does not sample in its steps: it has no rollout "
                "workers to balance with a trainer"
            )
        return cls(
            prompts=algorithm.prompts_per_step,
            samples=algorithm.samples_per_prompt
            + int(algorithm.greedy_baseline)
            + int(algorithm.reference_sample),
            max_sequences=rollout.engine.value.max_sequences,
            staleness=algorithm.max_staleness,
            flows=job.spec.in_flight is not InFlightPolicy.DRAIN,
            replicas=rollout.replicas,
        )

    @property
    def sequences(self) -> int:
        return self.prompts * self.samples


def compute_sizing(measurements: SizingMeasurements, shape: StepShape, most: int) -> Sizing:
    """Compute the sizing for 1 to `most` workers."""
    lengths = ResponseLengths(
        measurements.mean_length, measurements.longest_length, measurements.length_spread
    )
    work = StepWorkload(lengths.quantiles(shape.sequences), shape.samples, measurements.prompt_tokens)
    speed = EngineSpeed(measurements.passes, shape.max_sequences, measurements.prompt_tokens_per_second)
    costs = StepCosts(
        measurements.train_seconds,
        measurements.before_seconds,
        measurements.score_seconds,
        measurements.scoring_seconds,
        measurements.refit_seconds,
        measurements.rest_seconds,
    )
    return recommend_workers(work, speed, costs, shape.staleness, shape.flows, most)

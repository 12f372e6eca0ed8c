"""Metric families of a job: names, help texts, and the metrics of a step that they show.

The set is fixed, whatever a job stores: a job has at most one series for each row of STEP_METRICS, two for
each of its roles, and MAX_NAMES for each pattern. Meaning of the step's metrics: docs/metrics.md.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

#: Series of one job in a family whose label values the job chooses.
MAX_NAMES = 16
#: Label values that a job may choose; any other name has no series.
NAME_PATTERN = re.compile(r"[A-Za-z0-9_.=/-]{1,64}")


@dataclass(frozen=True)
class MetricFamily:
    """A metric family. Its labels are namespace, job_name and, unless it is empty, `label`."""

    name: str
    text: str
    label: str = ""
    kind: Literal["gauge", "counter"] = "gauge"


@dataclass(frozen=True)
class StepFamily(MetricFamily):
    """A family with metrics of the last step."""

    #: Name of a step's metric -> value of the label.
    metrics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NamedFamily(MetricFamily):
    """A family with all metrics of the last step that match a pattern, whose group 1 is the label's value."""

    pattern: re.Pattern[str] = re.compile("")


INFO = MetricFamily("kubealign_job_info", "1, with the algorithm of a job.", "algorithm")
PHASE = MetricFamily("kubealign_job_phase", "1, with the phase of a job.", "phase")
RESTARTS = MetricFamily("kubealign_job_restarts", "Restarts that count against lifecycle.maxRestarts.")
ACTIVE_SECONDS = MetricFamily(
    "kubealign_job_active_seconds_total",
    "Time that the job has been active, without waits for a queue or a node, and suspensions.",
    kind="counter",
)
ROLE_REPLICAS = MetricFamily("kubealign_job_role_replicas", "Desired processes, by role.", "role")
ROLE_READY = MetricFamily(
    "kubealign_job_role_ready", "Processes that are ready or completed, by role.", "role"
)
STATUS_FAMILIES = (INFO, PHASE, RESTARTS, ACTIVE_SECONDS, ROLE_REPLICAS, ROLE_READY)

STEP = MetricFamily("kubealign_job_step", "The last completed step.")
MAX_STEPS = MetricFamily("kubealign_job_max_steps", "Total number of steps, once it is known.")
WEIGHT_VERSION = MetricFamily("kubealign_job_weight_version", "Weight version of the rollout workers.")
PROGRESS_TIME = MetricFamily(
    "kubealign_job_progress_timestamp_seconds",
    "Time of the last completed step, or of the driver's start if that is later, in seconds since the epoch.",
)
DRIVER_UP = MetricFamily(
    "kubealign_job_driver_up", "1: the driver of a running job has sent a heartbeat within 15 seconds."
)
PROGRESS_FAMILIES = (STEP, MAX_STEPS, WEIGHT_VERSION, PROGRESS_TIME, DRIVER_UP)

_OBJECTIVES = ("policy", "critic", "preference", "sft", "distillation", "rm")
_PHASES = ("generate", "score", "values", "logprobs", "teacher", "train", "refit")
_WAITS = ("wait_groups", "wait_refit", "validation", "judge", "revise", "compare")

STEP_FAMILIES = (
    StepFamily("kubealign_job_reward_mean", "Mean reward of the step.", metrics={"reward/mean": ""}),
    StepFamily("kubealign_job_reward_std", "Standard deviation of the reward.", metrics={"reward/std": ""}),
    StepFamily(
        "kubealign_job_kl_nats_per_token",
        "KL divergence from the reference, mean per response token, in nats.",
        metrics={"kl/reference": ""},
    ),
    StepFamily(
        "kubealign_job_kl_nats_per_response",
        "KL divergence from the reference, summed over a response, in nats.",
        metrics={"kl/reference_sequence": ""},
    ),
    StepFamily(
        "kubealign_job_entropy_nats",
        "Mean entropy of the distributions of the response tokens, in nats.",
        metrics={"policy/entropy": ""},
    ),
    StepFamily(
        "kubealign_job_logprob_gap_nats",
        "Absolute difference of the engine's and the trainer's log-probabilities, in nats per token.",
        "statistic",
        metrics={"rollout/logprob_gap_mean": "mean", "rollout/logprob_gap_max": "max"},
    ),
    StepFamily(
        "kubealign_job_loss",
        "Loss, by objective.",
        "objective",
        metrics={f"{objective}/loss": objective for objective in _OBJECTIVES},
    ),
    StepFamily(
        "kubealign_job_accuracy_ratio",
        "Share of pairs whose chosen response has the higher reward or score, 0 to 1, by objective.",
        "objective",
        metrics={"preference/accuracy": "preference", "rm/accuracy": "rm"},
    ),
    StepFamily(
        "kubealign_job_gradient_norm",
        "Global L2 norm of the gradient before clipping, mean over the step's updates, by model.",
        "model",
        metrics={"trainer/gradient_norm": "trainer", "critic/gradient_norm": "critic"},
    ),
    StepFamily(
        "kubealign_job_learning_rate",
        "Learning rate of the last optimiser step, by model.",
        "model",
        metrics={"trainer/learning_rate": "trainer", "critic/learning_rate": "critic"},
    ),
    StepFamily(
        "kubealign_job_clipped_ratio",
        "Share of tokens whose gradient the clip removed, 0 to 1, by model.",
        "model",
        metrics={"policy/clip_fraction": "trainer", "critic/clip_fraction": "critic"},
    ),
    StepFamily(
        "kubealign_job_explained_variance",
        "Share of the variance of the returns that the critic explains; 1 is perfect.",
        metrics={"critic/explained_variance": ""},
    ),
    StepFamily(
        "kubealign_job_response_tokens",
        "Tokens of a response.",
        "statistic",
        metrics={"response/length": "mean", "response/length_max": "max"},
    ),
    StepFamily(
        "kubealign_job_truncated_ratio",
        "Share of responses that did not end within rollout.sampling.maxTokens, 0 to 1.",
        metrics={"response/truncated_share": ""},
    ),
    StepFamily("kubealign_job_step_seconds", "Duration of the step.", metrics={"seconds/step": ""}),
    StepFamily(
        "kubealign_job_step_phase_seconds",
        "Duration of a phase of the step. Phases overlap, so their sum may exceed the step.",
        "phase",
        metrics={f"seconds/{phase}": phase for phase in (*_PHASES, *_WAITS)},
    ),
    StepFamily(
        "kubealign_job_tokens_per_second",
        "Throughput: the batch's tokens over the step, responses over generation, the batch over training.",
        "phase",
        metrics={
            "tokens_per_second": "step",
            "tokens_per_second/generate": "generate",
            "tokens_per_second/train": "train",
        },
    ),
    StepFamily(
        "kubealign_job_staleness_versions",
        "Versions between the weights that generated a sample and those that train on it.",
        "statistic",
        metrics={"rollout/staleness": "mean", "rollout/staleness_max": "max"},
    ),
    StepFamily(
        "kubealign_job_prefetched_groups",
        "Groups of samples beyond the step's batch: in flight, or complete and not yet taken.",
        "state",
        metrics={"rollout/groups_in_flight": "in_flight", "rollout/groups_waiting": "waiting"},
    ),
    StepFamily(
        "kubealign_job_refit_workers",
        "Rollout workers that have received the step's weights.",
        metrics={"refit/workers": ""},
    ),
    StepFamily(
        "kubealign_job_quarantined_workers",
        "Rollout workers that may not generate because their last refit failed.",
        metrics={"refit/quarantined_workers": ""},
    ),
    StepFamily("kubealign_job_refit_bytes", "Size of the published weights.", metrics={"refit/bytes": ""}),
)

NAMED_FAMILIES = (
    NamedFamily(
        "kubealign_job_reward_source_mean",
        "Mean raw score of a reward source.",
        "source",
        pattern=re.compile(r"reward/([^/]+)/mean"),
    ),
    NamedFamily(
        "kubealign_job_validation",
        "A metric of the last validation on held-out data, by its name after val/.",
        "metric",
        pattern=re.compile(r"val/(.+)"),
    ),
)

FAMILIES: tuple[MetricFamily, ...] = (
    *STATUS_FAMILIES,
    *PROGRESS_FAMILIES,
    *STEP_FAMILIES,
    *NAMED_FAMILIES,
)
#: Name of a step's metric -> (family, value of the label).
STEP_METRICS: Mapping[str, tuple[StepFamily, str]] = {
    metric: (family, value) for family in STEP_FAMILIES for metric, value in family.metrics.items()
}

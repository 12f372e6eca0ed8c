"""Metrics of a batch: log-probability gap, waits, data position, responses and reward model attributes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from kubealign.v1 import scoring_pb2
from kubealign_services.algorithms.losses.logprob_gap import comparable_tokens
from kubealign_services.batch.auxiliary_sequences import trainable
from kubealign_services.batch.packed import Batch, prompt_lengths, sequence_sums
from kubealign_services.batch.samples import has_several_sequences, merge_samples
from kubealign_services.roles.driver.rollouts.batch_assembly import (
    compute_staleness,
    has_mixed_versions,
    prompt_of,
)
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.roles.driver.rollouts.prompt_source import TrainingPrompts


def measure_logprob_gap(batch: Batch) -> dict[str, float]:
    """Return the mean and largest absolute difference of engine_logprobs and old_logprobs, in nats.

    The gap reveals silently wrong numbers first. It covers the response tokens generated with the weights
    that train on them; empty if no such token exists.
    """
    mask = comparable_tokens(batch)
    if not bool(mask.any()):
        return {}
    gap = (batch.token("engine_logprobs") - batch.token("old_logprobs"))[mask].abs()
    return {"rollout/logprob_gap_mean": float(gap.mean()), "rollout/logprob_gap_max": float(gap.max())}


def wait_metrics(groups: Sequence[RolloutGroup], requested_at: float, taken_at: float) -> dict[str, float]:
    """Return how long trainer and groups waited for each other, in seconds.

    The trainer waited for this batch's groups from `requested_at` to `taken_at` (time.monotonic()); complete
    groups waited for the trainer.
    """
    waited = [taken_at - (group.completed_at or taken_at) for group in groups]
    return {
        "seconds/wait_groups": taken_at - requested_at,
        "seconds/groups_waited": sum(waited) / len(waited),
    }


def data_metrics(prompts: TrainingPrompts, dropped_rows: int, names: Iterable[str]) -> dict[str, float]:
    """Return the position in the data as metrics, and the rows of each source of a mixture.

    Args:
        dropped_rows: Rows left out for their length during preparation; streamed rows are counted by prompts.
        names: Names of the step's prompts.
    """
    position = {"data/epoch": prompts.cursor.epoch, "data/dropped_prompts": dropped_rows}
    return position | prompts.metrics() | source_metrics(prompts, names)


def source_metrics(prompts: TrainingPrompts, names: Iterable[str]) -> dict[str, float]:
    """Return the rows that each source of a mixture has in the step: data/source/NAME/rows.

    Args:
        names: Names of the step's prompts.
    """
    counts = Counter(prompts.source_of(name) for name in names)
    return {f"data/source/{source}/rows": counts[source] for source in prompts.source_names}


def source_reward_metrics(batch: Batch, prompts: TrainingPrompts) -> dict[str, float]:
    """Return the mean reward of each source of a mixture: reward/source/NAME/mean.

    Auxiliary sequences do not count; a source without a sequence in the batch has no metric.

    Args:
        batch: Has the sequence column rewards, float32 [S].
    """
    if not prompts.source_names:
        return {}
    batch = trainable(batch)
    rewards: dict[str | None, list[float]] = {}
    for sample_id, reward in zip(batch.sample_ids, batch.sequence("rewards").tolist(), strict=True):
        rewards.setdefault(prompts.source_of(prompt_of(sample_id)), []).append(reward)
    return {
        f"reward/source/{source}/mean": fmean(rewards[source])
        for source in prompts.source_names
        if source in rewards
    }


def response_metrics(batch: Batch, version: int) -> dict[str, float]:
    """Return lengths, truncation, staleness and weight version of a batch of samples, without auxiliary
    sequences.

    A prompt is the tokens before the first response token: later tokens of a workflow's tools count in
    neither length. Of samples with several sequences, turns and failed calls are those of samples, all other
    metrics those of sequences.
    """
    batch = trainable(batch)
    samples = merge_samples(batch)
    lengths = sequence_sums(batch.token("loss_mask").float(), batch)
    prompts = prompt_lengths(batch).float()
    age = compute_staleness(batch, version)
    workflow_metrics = {
        f"rollout/{name}": float(samples.sequence(name).float().mean())
        for name in ("turns", "tool_errors")
        if name in samples.sequence_columns
    }
    if has_several_sequences(batch):
        workflow_metrics["rollout/sequences_per_sample"] = len(batch) / len(samples)
    return workflow_metrics | {
        "batch/tokens": len(batch.tokens),
        "batch/prompt_tokens": float(prompts.sum()),
        "batch/response_tokens": float(lengths.sum()),
        "batch/sequences": len(batch),
        "prompt/length": float(prompts.mean()),
        "prompt/length_max": float(prompts.max()),
        "response/length": float(lengths.mean()),
        "response/length_max": float(lengths.max()),
        "response/truncated_share": float(batch.sequence("truncated").float().mean()),
        "weights/version": version,
        "rollout/staleness": float(age.float().mean()),
        "rollout/staleness_max": float(age.max()),
        "rollout/mixed_versions_share": float(has_mixed_versions(batch).float().mean()),
    }


def scoring_seconds(scores: Iterable[scoring_pb2.Score]) -> dict[str, float]:
    """Return the seconds that the workers of each source computed for these scores: seconds/score/SOURCE."""
    seconds: dict[str, float] = {}
    for score in scores:
        name = f"seconds/score/{score.source}"
        seconds[name] = seconds.get(name, 0.0) + score.seconds
    return seconds


def objective_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the objective of RLHF, the mean reward minus the KL penalty, and its part that is no reward.

    Per response, in units of the reward, like TRL's metrics of the same names; empty where the step has
    no KL penalty, or no measured rewards (a replay).

    Source: Ouyang et al. 2022, equation 2 (without the pretraining term).
    """
    if not {"reward/mean", "kl/coefficient", "kl/reference_sequence"} <= metrics.keys():
        return {}
    penalty = metrics["kl/coefficient"] * metrics["kl/reference_sequence"]
    return {
        "objective/non_score_reward": -penalty,
        "objective/rlhf_reward": metrics["reward/mean"] - penalty,
    }


def reward_failure_metrics(scores: Iterable[scoring_pb2.Score]) -> dict[str, float]:
    """Return the number of samples on which a reward function failed and that have a reward by onError:
    reward/NAME/errors and reward/NAME/timeouts. Empty where no function failed.
    """
    failures = Counter(f"reward/{score.source}/{score.failure}s" for score in scores if score.failure)
    return {name: float(count) for name, count in failures.items()}


def score_detail_metrics(scores: Iterable[scoring_pb2.Score]) -> dict[str, float]:
    """Return the means of what scores contain besides the reward; empty for scores with a reward alone.

    reward/NAME/ATTRIBUTE: each score of a model with several. reward/NAME/METRIC: each metric of a function,
    over the responses for which it reports the metric. reward/NAME/disagreement: the deviation between an
    ensemble's members.
    """
    values_by_metric: dict[str, list[float]] = {}
    for score in scores:
        for name, value in (*score.attributes.items(), *score.metrics.items()):
            values_by_metric.setdefault(f"reward/{score.source}/{name}", []).append(value)
        if score.HasField("disagreement"):
            values_by_metric.setdefault(f"reward/{score.source}/disagreement", []).append(score.disagreement)
    return {name: fmean(values) for name, values in values_by_metric.items()}

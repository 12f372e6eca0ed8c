"""Health rules with metrics just above and just below their thresholds."""

from typing import Any

import pytest

from kubealign.client.records import ProcessState
from kubealign.diagnostics.health import Severity, check_health
from kubealign.diagnostics.health.series import MetricSeries
from kubealign.read_model import StepMetrics

from .conftest import RESOURCE, Found, process, steps


def test_healthy_job_has_no_findings(found: Found) -> None:
    assert found(processes=[process("driver", "driver"), process("rollout-0", "rollout")]) == []
    assert found(count=0) == found(count=1) == []


SICK: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # name: (anchor, metrics above the threshold, metrics just below it)
    "far away": (
        "kl-running-away",
        {"kl__reference_sequence": lambda s: 31.0, "kl__reference": lambda s: 0.06},
        {"kl__reference_sequence": lambda s: 31.0, "kl__reference": lambda s: 0.03},
    ),
    "growing": (
        "kl-running-away",
        # 3 nats at steps 21 to 40, now 12.5: four times as much
        {"kl__reference_sequence": lambda s: 3.0 if s <= 40 else 12.5},
        {"kl__reference_sequence": lambda s: 3.0 if s <= 40 else 11.5},
    ),
    "below zero": (
        "kl-below-zero",
        {"kl__reference": lambda s: -0.03},
        {"kl__reference": lambda s: -0.03 if s % 2 else 0.03},
    ),
    "collapse": (
        "entropy-collapse",
        {"policy__entropy": lambda s: 0.8 if s < 40 else 0.015},
        {"policy__entropy": lambda s: 0.1 if s < 40 else 0.015},
    ),
    "noise": (
        "entropy-rising",
        {"policy__entropy": lambda s: 0.8 + s / 20},
        {"policy__entropy": lambda s: 0.8 + s / 60},
    ),
    "clipped": (
        "clip-fraction",
        {"policy__clip_fraction": lambda s: 0.35},
        {"policy__clip_fraction": lambda s: 0.9 if s in (57, 59) else 0.25},
    ),
    "moved": ("clip-fraction", {"policy__approx_kl": lambda s: 0.2}, {"policy__approx_kl": lambda s: 0.05}),
    "spikes": (
        "gradient-spikes",
        {"trainer__gradient_norm": lambda s: 15.0 if s in (53, 58) else 1.0},
        {"trainer__gradient_norm": lambda s: 15.0 if s == 58 else 1.0},
    ),
    "the critic's spikes": (
        "gradient-spikes",
        {"critic__gradient_norm": lambda s: 15.0 if s in (53, 58) else 1.0},
        {"critic__gradient_norm": lambda s: 15.0 if s in (33, 38) else 1.0},
    ),
    "all cut off": (
        "answers-cut-off",
        {"response__truncated_share": lambda s: 0.95},
        {"response__truncated_share": lambda s: 0.6},
    ),
    "more cut off": (
        "answers-cut-off",
        {"response__truncated_share": lambda s: 0.1 if s < 30 else 0.55},
        {"response__truncated_share": lambda s: 0.3 if s < 30 else 0.55},
    ),
    "longer": (
        "length-growing",
        {"response__length": lambda s: 30.0 if s < 30 else 100.0},
        {"response__length": lambda s: 12.0 if s < 30 else 40.0},
    ),
    "empty": (
        "responses-empty",
        {"response__length": lambda s: 12.0 if s < 30 else 1.2},
        {"response__length": lambda s: 4.0 if s < 30 else 1.2},
    ),
    "alike": ("rewards-alike", {"reward__std": lambda s: 0.0}, {"reward__std": lambda s: 0.01}),
    "constant": (
        "constant-groups",
        {"reward__constant_groups": lambda s: 0.95},
        {"reward__constant_groups": lambda s: 0.8},
    ),
    "mismatch near the gate": (
        "engine-mismatch",
        {"rollout__logprob_gap_mean": lambda s: 0.03},
        {"rollout__logprob_gap_mean": lambda s: 0.2 if s == 60 else 0.02},
    ),
    "stale": (
        "staleness",
        {"rollout__staleness_max": lambda s: 1.0},
        {"rollout__staleness_max": lambda s: 1.0 if s > 58 else 0.0},
    ),
    "thrown away": (
        "staleness",
        {"data__discarded_groups": lambda s: 2.0 * s},
        {"data__discarded_groups": lambda s: 0.5 * s},
    ),
    "the critic is behind": (
        "critic-behind",
        {"critic__explained_variance": lambda s: -0.1},
        {"critic__explained_variance": lambda s: -0.1 if s < 30 else 0.1},
    ),
    "the value clip": (
        "critic-behind",
        {"critic__clip_fraction": lambda s: 0.6},
        {"critic__clip_fraction": lambda s: 0.4},
    ),
    "refits fail": (
        "refits-fail",
        {"refit__retries": lambda s: 1.0 if s in (45, 55) else 0.0},
        {"refit__retries": lambda s: 1.0 if s in (20, 55) else 0.0},
    ),
    "quarantined": (
        "refits-fail",
        {"refit__quarantined_workers": lambda s: 1.0},
        {"refit__quarantined_workers": lambda s: 1.0 if s < 60 else 0.0},
    ),
    "given up": (
        "prompts-given-up",
        {"data__given_up_prompts": lambda s: 1.0},
        {"data__given_up_prompts": lambda s: 0.0},
    ),
}


@pytest.mark.parametrize("name", SICK)
def test_each_rule_triggers_just_above_its_threshold(name: str, found: Found) -> None:
    anchor, sick, well = SICK[name]
    (finding,) = found(**sick)
    assert finding.anchor == anchor
    assert finding.title and finding.detail.endswith(".") and finding.remedy.endswith(".")
    assert finding.metric
    assert found(**well) == []


def test_findings_state_the_numbers(found: Found) -> None:
    (gap,) = found(rollout__logprob_gap_mean=lambda s: 0.03)
    assert (
        "differ by 0.03 nats" in gap.detail and "gate is at 0.05" in gap.detail
    ) and gap.severity is Severity.WARNING
    (gap,) = found(rollout__logprob_gap_mean=lambda s: 0.08)
    assert gap.severity is Severity.CRITICAL and "above 0.5 the job fails" in gap.detail
    fail = {"spec": {"rollout": {"mismatchGate": {"mean": 0.05, "action": "Fail"}}}}
    (gap,) = found(resource=fail, rollout__logprob_gap_mean=lambda s: 0.04)
    assert "gate is at 0.05, and above 0.05 the job fails" in gap.detail
    other = {"spec": {"rollout": {"mismatchGate": {"mean": 0.1, "unknown": 1}}}}
    (gap,) = found(resource=other, rollout__logprob_gap_mean=lambda s: 0.04)
    assert "gate is at 0.05" in gap.detail
    gate = {"spec": {"rollout": {"mismatchGate": {"mean": 0.5}}}}
    assert found(resource=gate, rollout__logprob_gap_mean=lambda s: 0.08) == []
    (cut,) = found(response__truncated_share=lambda s: 0.95)
    assert cut.detail == "95 % of the responses do not end within maxTokens; 95 % at the start."
    assert cut.severity is Severity.CRITICAL
    (far,) = found(kl__reference_sequence=lambda s: 120.0, kl__reference=lambda s: 0.5)
    assert far.severity is Severity.CRITICAL
    assert "120 nats a response from the reference (0.5 a token); 20 steps before it was 120" in far.detail


def test_many_given_up_prompts_are_a_warning(found: Found) -> None:
    (few,) = found(data__given_up_prompts=lambda s: 4.0)
    (many,) = found(data__given_up_prompts=lambda s: 0.0 if s < 50 else 4.0)
    assert (few.severity, many.severity) == (Severity.INFO, Severity.WARNING)
    assert "4 since the start, 4 of them in the last 20 steps" in many.detail


def test_allowed_staleness_is_no_finding(found: Found) -> None:
    resource = {"spec": {"algorithm": {"grpo": {"maxStaleness": 2}}}}
    assert found(resource=resource, rollout__staleness_max=lambda s: 2.0) == []
    assert len(found(resource=resource, rollout__staleness_max=lambda s: 3.0)) == 1


def test_critic_is_judged_after_its_warm_up(found: Found) -> None:
    assert found(count=32, critic__explained_variance=lambda s: -0.5) == []
    assert len(found(count=33, critic__explained_variance=lambda s: -0.5)) == 1


def measured(values: list[float], rise: float) -> list[StepMetrics]:
    """Return 60 steps with val/exact every ten steps and a reward that rises by `rise` per step."""
    messages = []
    for metrics in steps(60, {"reward/mean": lambda step: rise * step}):
        messages.append(metrics)
        if metrics.step % 10 == 0:
            value = values[metrics.step // 10 - 1]
            messages.append(StepMetrics(f"{metrics.step}-1", metrics.step, 1, {"val/exact": value}))
    return messages


def test_reward_gaming_is_found() -> None:
    fallen = [0.3, 0.6, 0.7, 0.6, 0.5, 0.4]
    (finding,) = check_health(RESOURCE, measured(fallen, 0.05), [])
    assert (finding.anchor, finding.metric) == ("reward-gaming", "val/exact")
    # the reward's medians over five steps up to 30 and 60, at 0.05 a step: 1.4 and 2.9
    assert "val/exact is 0.4 and was 0.7 at step 30; the reward has gone from 1.4 to 2.9" in finding.detail
    assert check_health(RESOURCE, measured(fallen, 0.001), []) == []
    assert check_health(RESOURCE, measured([0.3, 0.6, 0.7, 0.6, 0.5, 0.69], 0.05), []) == []


def test_repeated_steps_count_once() -> None:
    sick = steps(60, {"policy/clip_fraction": lambda step: 0.9})
    again = steps(60, {}, fence=2)[40:]
    assert len(check_health(RESOURCE, sick, [])) == 1
    assert check_health(RESOURCE, [*sick, *again], []) == []
    # The second driver resumed from step 40 and finished step 41 only.
    series = MetricSeries([*sick, again[0]])
    assert [step for step, _ in series.points("reward/mean")] == list(range(1, 42))


def test_silent_process_is_found(found: Found) -> None:
    speaking = process("driver", "driver")
    silent = process("rollout-1", "rollout", silent_seconds=None, says={})
    nats = process("nats", "nats", silent_seconds=None, says={})
    (finding,) = found(processes=[speaking, silent, nats])
    assert (finding.anchor, finding.title) == ("silent-process", "rollout-1 is silent")
    # If every process is silent, Redis is the cause. A process that is not ready has its own finding.
    assert found(processes=[silent, nats]) == []
    starting = process("rollout-1", "rollout", silent_seconds=None, says={}, state=ProcessState.STARTING)
    assert found(processes=[speaking, starting]) == []
    suspended = RESOURCE | {"status": {"phase": "Suspended"}}
    assert found(resource=suspended, processes=[speaking, silent]) == []


def test_restarting_process_is_found(found: Found) -> None:
    (finding,) = found(processes=[process("reward-a-0", "reward", restarts=3, message="killed by signal 9")])
    assert (finding.anchor, finding.detail) == (
        "restarts",
        "It was restarted 3 times: killed by signal 9.",
    )
    assert found(processes=[process("reward-a-0", "reward", restarts=2)]) == []


def test_a_quarantined_worker_says_why(found: Found) -> None:
    says = {"quarantined": True, "last_error": "not done within 120 s: still waiting for the bytes"}
    (finding,) = found(processes=[process("rollout-0", "rollout", says=says)])
    assert finding.anchor == "refits-fail"
    assert "still waiting for the bytes" in finding.detail


def test_stalled_job_is_found(found: Found) -> None:
    def driver(seconds: float) -> Any:
        waits = "12 samples of 3 groups from the rollout workers"
        return process("driver", "driver", says={"seconds_since_step": seconds, "waiting_for": waits})

    (finding,) = found(processes=[driver(121.0)])
    assert (finding.anchor, finding.severity) == ("stalled", Severity.CRITICAL)
    assert "121 s ago, where 2 s are usual; it waits for 12 samples of 3 groups" in finding.detail
    assert found(processes=[driver(119.0)]) == []
    # With steps of 10 s the limit is twenty steps, which exceeds two minutes.
    assert found(processes=[driver(199.0)], seconds__step=lambda s: 10.0) == []
    assert len(found(processes=[driver(201.0)], seconds__step=lambda s: 10.0)) == 1


def test_findings_are_sorted_by_severity(found: Found) -> None:
    severities = [
        finding.severity
        for finding in found(
            data__given_up_prompts=lambda s: 1.0,
            policy__clip_fraction=lambda s: 0.5,
            response__truncated_share=lambda s: 0.95,
        )
    ]
    assert severities == [Severity.CRITICAL, Severity.WARNING, Severity.INFO]


def test_equal_rewards_are_no_finding_for_data_generation(found: Found) -> None:
    sick = {"reward__std": lambda s: 0.0}
    assert [finding.anchor for finding in found(**sick)] == ["rewards-alike"]
    resource = RESOURCE | {"spec": {"algorithm": {"generate": {}}}}
    assert found(resource=resource, **sick) == []


def test_equal_rewards_are_no_finding_where_a_teacher_replaces_them(found: Found) -> None:
    sick = {"reward__std": lambda s: 0.0, "reward__constant_groups": lambda s: 1.0}
    spec = {"algorithm": {"onPolicyDistillation": {}}}
    assert found(resource=RESOURCE | {"spec": spec}, **sick) == []
    rewarded = RESOURCE | {"spec": spec | {"rewards": [{"name": "right"}]}}
    assert {finding.anchor for finding in found(resource=rewarded, **sick)} == {
        "rewards-alike",
        "constant-groups",
    }

"""Retention bounds of jobs, and the window of their requests."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign.nats_config import MAX_STORE_BYTES
from kubealign.spec.job import AlignmentJob
from kubealign_services.messaging.retention_limits import bounds_for
from kubealign_services.runtime.process.bus_load import (
    RequestWindow,
    bus_bounds,
    initial_policy_bytes,
    request_window,
)
from support.tiny_jobs import FROM_CONFIG

REWARDS = [{"name": "exact", "function": {"module": "a:b"}}]
JUDGE = {"prompt": "{response}?", "samples": 3, "maxTokens": 16}
ROUNDS = [
    {"spin": {"promptsPerRound": 50_000}},
    {"rejectionSampling": {"promptsPerRound": 50_000, "samplesPerPrompt": 8}},
    {"selfRewarding": {"promptsPerRound": 50_000, "judge": JUDGE}},
]


def job(algorithm: dict[str, Any], **spec: Any) -> AlignmentJob:
    (name,) = algorithm
    data = (
        "prompts" if name in ("rejectionSampling", "selfRewarding", "grpo", "generate") else "demonstrations"
    )
    more = {
        "distillation": {"teacher": {"model": FROM_CONFIG}},
        "rejectionSampling": {"rewards": REWARDS},
        "grpo": {"rewards": REWARDS},
    }
    return AlignmentJob.model_validate(
        {
            "metadata": {"name": "rows"},
            "spec": {
                "maxSteps": 1,
                "algorithm": algorithm,
                "policy": {"model": FROM_CONFIG},
                "data": {data: {"source": {"path": "rows.jsonl"}, "maxTokens": 1000}},
                **more.get(name, {}),
                **spec,
            },
        }
    )


def test_teacher_scores_of_two_steps_fit() -> None:
    bounds = bus_bounds(job({"distillation": {"rowsPerStep": 500, "candidates": 64}}))
    # A token and its log-probability, eight bytes, for each candidate.
    assert bounds["scores"].size_bytes >= 2 * 500 * 1000 * 64 * 8
    assert bounds["rollouts"].size_bytes < bounds["scores"].size_bytes / 5
    assert (
        bus_bounds(job({"sft": {"rowsPerStep": 500}}))["scores"].size_bytes == bounds["rollouts"].size_bytes
    )


def test_rollouts_that_are_sent_to_each_scorer_once_more_fit() -> None:
    algorithm = {"grpo": {"promptsPerStep": 50_000, "samplesPerPrompt": 4}}
    bounds, requested = (
        bus_bounds(job(algorithm, **more))["rollouts"]
        for more in ({}, {"overlap": {"scoreOnArrival": False}})
    )
    assert bounds.messages == 2 * 200_000
    assert requested.messages == 2 * 200_000 * 3, (
        "the rollouts, and a copy for the reward and the reference each"
    )
    assert requested.size_bytes == 3 * bounds.size_bytes


def test_groups_that_are_sent_once_more_fit() -> None:
    """A validation's requests are windowed, and its scores of groups are sent the samples once more."""
    grouped = [REWARDS[0] | {"scope": "Group"}, {"name": "plain", "function": {"module": "a:c"}}]
    algorithm = {"grpo": {"promptsPerStep": 50_000, "samplesPerPrompt": 4}}
    assert bus_bounds(job(algorithm, rewards=grouped))["rollouts"].messages == 2 * 200_000 * 2
    rollout = {"rollout": {"replicas": 1000}}
    rounds = {"rejectionSampling": {"promptsPerRound": 50_000, "samplesPerPrompt": 8}}
    once, twice = (
        bus_bounds(job(rounds, rewards=rewards, **rollout))["rollouts"].size_bytes
        for rewards in (REWARDS, grouped[:1])
    )
    assert twice == 2 * once


def test_the_window_is_two_loads_of_all_workers() -> None:
    window = RequestWindow(workers=2, samples_per_worker=128, max_samples=1_000_000)
    assert window.groups(1) == 2 * 2 * 128
    assert window.groups(8) == 2 * 2 * 16
    # A worker begins a group while it has room for one sample, and pulls four groups at a time.
    assert window.groups(100) == window.groups(1000) == 2 * 2 * 4
    assert RequestWindow(2, 128, max_samples=100).groups(8) == 12
    assert RequestWindow(2, 128, max_samples=100).groups(1000) == 1


@pytest.mark.parametrize("algorithm", ROUNDS, ids=lambda entry: next(iter(entry)))
@settings(max_examples=15)
@given(
    workers=st.integers(1, 1024),
    sequences=st.integers(1, 1024),
    tokens=st.integers(1, 131_072),
    responses=st.integers(1, 16),
)
def test_the_bus_holds_two_windows_and_a_share_of_the_server_s_storage(
    algorithm: dict[str, Any], workers: int, sequences: int, tokens: int, responses: int
) -> None:
    rollout = {
        "replicas": workers,
        "engine": {"torch": {"maxSequences": sequences}},
        "sampling": {"maxTokens": tokens},
    }
    validation = {
        "data": {"prompts": {"source": {"path": "held-out.jsonl"}}},
        "sampling": {"samplesPerPrompt": responses},
    }
    entry = job(algorithm, rollout=rollout, validation=validation)
    window, bounds = request_window(entry), bus_bounds(entry)
    assert window is not None
    spec = entry.spec.algorithm.value
    sizes = {1, spec.samples_per_prompt, responses} | ({spec.judge.samples} if spec.judged_by else set())
    for size in sizes:
        groups = window.groups(size)
        sources = 1 + len(entry.spec.rewards)
        load = bounds_for(groups, size, sources, 1000 + tokens)
        for subject in ("work", "rollouts", "scores"):
            assert bounds[subject].messages >= load[subject].messages
            assert bounds[subject].size_bytes >= load[subject].size_bytes
    assert sum(bound.size_bytes for bound in bounds.values()) < MAX_STORE_BYTES


def test_bounds_of_jobs_without_a_window_are_those_of_a_step() -> None:
    many_workers = {"replicas": 64}
    entry = {"grpo": {"promptsPerStep": 16, "samplesPerPrompt": 4}}
    assert bus_bounds(job(entry, rollout=many_workers)) == bus_bounds(job(entry))
    validated = {"data": {"prompts": {"source": {"path": "held-out.jsonl"}}}}
    larger = bus_bounds(job(entry, rollout=many_workers, validation=validated))
    assert larger["rollouts"].size_bytes > bus_bounds(job(entry))["rollouts"].size_bytes
    assert request_window(job({"sft": {}})) is None


def test_recorded_experts_fit() -> None:
    algorithm = {"grpo": {"promptsPerStep": 512, "samplesPerPrompt": 16}}
    sampling, policy = {"maxTokens": 1000}, {"model": {"path": "mixture"}}
    replayed = {"sampling": sampling, "routingReplay": True}
    # 48 layers with 8 experts for a token.
    entry = job(algorithm, rollout=replayed, policy=policy)
    assert bus_bounds(entry, 0, 384)["rollouts"].size_bytes == 4 << 30
    fewer = job({"grpo": {"promptsPerStep": 8}}, rollout=replayed, policy=policy)
    assert bus_bounds(fewer, 0, 384)["rollouts"].size_bytes >= 2 * 8 * 8 * 2000 * 384
    without = job(algorithm, rollout={"sampling": sampling}, policy=policy)
    assert bus_bounds(without, 0, 384) == bus_bounds(without)


@pytest.mark.parametrize(
    ("subject", "count", "context"), [("work", 128, 2 << 20), ("rollouts", 2048, 200 << 10)]
)
def test_the_columns_of_rows_fit(subject: str, count: int, context: int) -> None:
    """Check test cases of 200 KiB a row, which were left out: 400 MiB of rollouts against a bound of 208."""
    entry = job({"grpo": {"promptsPerStep": 128, "samplesPerPrompt": 16}})
    assert bus_bounds(entry, context)[subject].size_bytes >= 2 * count * context
    # Enormous columns do not claim more than the server's storage.
    assert sum(bounds.size_bytes for bounds in bus_bounds(entry, 1 << 30).values()) <= MAX_STORE_BYTES


def test_all_sequences_of_an_episode_fit() -> None:
    algorithm = {"grpo": {"promptsPerStep": 256, "samplesPerPrompt": 8}}
    workflow = {"workflow": {"function": {"module": "flows:plan"}}, "sampling": {"maxTokens": 1000}}
    alone = bus_bounds(job(algorithm, rollout=workflow))["rollouts"]
    episodes = bus_bounds(job(algorithm, rollout={**workflow, "maxSequencesPerSample": 4}))["rollouts"]
    assert episodes.messages == alone.messages
    assert episodes.size_bytes > 3 * alone.size_bytes


def test_responses_of_the_initial_policy_are_columns_of_the_rows_of_a_validation() -> None:
    def validated(column: str | None) -> AlignmentJob:
        sampling = {"samplesPerPrompt": 4, "maxTokens": 300, "initialPolicyColumn": column}
        data = {"prompts": {"source": {"path": "held-out.jsonl"}}}
        algorithm = {"grpo": {"promptsPerStep": 8, "samplesPerPrompt": 4}}
        return job(algorithm, validation={"data": data, "sampling": sampling})

    plain, compared = validated(None), validated("initial")
    assert (initial_policy_bytes(plain), initial_policy_bytes(compared)) == (0, 300 * 16)
    # Above the least bound. The columns of a row are as long as if the row had the response itself.
    context = 2_000_000
    longer = bus_bounds(plain, context + 300 * 16)["rollouts"].size_bytes
    assert (
        bus_bounds(compared, context)["rollouts"].size_bytes
        >= longer
        > bus_bounds(plain, context)["rollouts"].size_bytes
    )


def test_judgements_of_the_policy_are_further_work_items_and_rollouts() -> None:
    algorithm = {"grpo": {"promptsPerStep": 50_000, "samplesPerPrompt": 4}}
    judge = {"task": {"pointwise": {}}, "template": "{response}" + "?" * 90, "maxTokens": 400}
    plain = bus_bounds(job(algorithm))
    judged = bus_bounds(job(algorithm, rewards=[{"name": "own", "policyJudge": judge}]))
    assert plain["work"].messages == 2 * 50_000
    assert judged["work"].messages == judged["rollouts"].messages == 2 * 3 * 200_000
    # Prompt and response have 1000 and 256 tokens, template and judgement 100 and 400.
    bytes_of = {
        name: bounds["rollouts"].size_bytes / bounds["rollouts"].messages
        for name, bounds in (("plain", plain), ("judged", judged))
    }
    assert bytes_of == {"plain": 4096 + 1256 * 32, "judged": 4096 + 1756 * 32}

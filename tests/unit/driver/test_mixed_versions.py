"""Samples that several versions of the weights made, from the engine to the loss: numbers by hand."""

import math
import time

import pytest
import torch

from kubealign.spec.algorithms import Importance
from kubealign.v1 import rollout_pb2
from kubealign_services.algorithms.importance import behaviour_kl, importance_weights
from kubealign_services.algorithms.mismatch import comparable
from kubealign_services.batch.packed import Batch
from kubealign_services.driver.assembly import Sampled, assemble, mixed, oldest_version, staleness
from kubealign_services.driver.ledger import Group
from kubealign_services.driver.source import response_figures, waits
from kubealign_services.generation.contract import Finish, GeneratedSample
from kubealign_services.rollout.messages import rollout_of

#: What the trainer, at version 5, says of the tokens below.
OLD = [0.6, 0.2, 0.8, 0.5, 0.3, 0.9]


def sample(index: int, versions: list[int], probabilities: list[float]) -> rollout_pb2.Rollout:
    """As a worker sends it. probabilities: of each token, by the weights that made it."""
    item = rollout_pb2.WorkItem(fence=1, group_id="0/7", prompt_tokens=[1], samples=2, purpose="train")
    logprobs = [math.log(value) for value in probabilities]
    made = GeneratedSample(
        "r", index, [9] * len(versions), logprobs, logprobs, versions, Finish.STOP, "x" * len(versions)
    )
    return rollout_of(item, made, "w")


def whole() -> Group:
    """Interrupted after its second token, and a sample that one version made."""
    first = sample(0, [3, 3, 5, 5], [0.5, 0.4, 0.8, 0.25])
    second = sample(1, [5, 5], [0.6, 0.9])
    return Group("0/7", 2, min_version=3, deadline=0.0, asked_at=0.0, rollouts={0: first, 1: second})


def batch(*, continued: bool = False) -> Batch:
    made = assemble([whole()], [], Sampled(1.0, 9, continued=continued), 5, reference=False)
    old = torch.zeros(len(made.tokens))
    old[made.token("loss_mask").bool()] = torch.tensor(OLD).log()
    made.token_columns["old_logprobs"] = old
    return made


def test_each_token_is_weighed_by_what_really_sampled_it() -> None:
    """w = p_old / p_behaviour, cut at 1.5: 0.6/0.5, 0.2/0.4, 0.8/0.8, 0.5/0.25; then 0.3/0.6, 0.9/0.9."""
    made = batch()
    counted = made.token("loss_mask").bool()
    old, behaviour = made.token("old_logprobs")[counted], made.token("behaviour_logprobs")[counted]
    weights = importance_weights(old - behaviour, made.sequence_of_token[counted], Importance(high=1.5))
    assert weights.raw.tolist() == pytest.approx([1.2, 0.5, 1.0, 2.0, 0.5, 1.0])
    assert weights.applied.tolist() == pytest.approx([1.2, 0.5, 1.0, 1.5, 0.5, 1.0])
    assert weights.outside.tolist() == [0, 0, 0, 1, 0, 0]
    # K3: r - 1 - log r.
    found = behaviour_kl(old, behaviour)
    expected = [r - 1 - math.log(r) for r in (1.2, 0.5, 1.0, 2.0, 0.5, 1.0)]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


def test_a_sample_is_as_old_as_its_oldest_token() -> None:
    made = batch()
    assert staleness(made, 5).tolist() == [2, 0]
    assert mixed(made).tolist() == [True, False]
    assert oldest_version(whole()) == 3
    figures = response_figures(made, 5)
    assert figures["rollout/staleness"] == 1.0 and figures["rollout/staleness_max"] == 2.0
    assert figures["rollout/mixed_versions_share"] == 0.5


def test_a_response_without_tokens_of_its_own_is_not_mixed() -> None:
    made = batch()
    made.token_columns["loss_mask"] = torch.zeros(len(made.tokens), dtype=torch.uint8)
    assert mixed(made).tolist() == [False, False]


def test_engine_and_trainer_are_compared_where_both_computed_the_same() -> None:
    """Interrupted, the later tokens are the newest weights' whole; continued, they stand on older ones'."""
    tokens = batch().token("loss_mask").bool()
    assert comparable(batch())[tokens].tolist() == [False, False, True, True, True, True]
    assert comparable(batch(continued=True))[tokens].tolist() == [False, False, False, False, True, True]
    assert batch(continued=True).scalars["continued"] == 1.0


def test_who_waited_for_whom() -> None:
    """Two groups, whole 3 and 1 seconds before they were taken; the trainer had asked 2 seconds before."""
    now = time.monotonic()
    groups = [
        Group("a", 1, 0, 0.0, 0.0, completed_at=now - 3),
        Group("b", 1, 0, 0.0, 0.0, completed_at=now - 1),
    ]
    figures = waits(groups, asked=now - 2, taken=now)
    assert figures == pytest.approx({"seconds/wait_groups": 2.0, "seconds/groups_waited": 2.0})

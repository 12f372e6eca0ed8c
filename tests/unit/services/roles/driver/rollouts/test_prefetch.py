"""Prefetch of columns before the step's batch is complete."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.rollout import ReferencePlacement
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.batch.reward_columns import read_scores
from kubealign_services.data.mixture import MixedSource, MixtureOrder
from kubealign_services.data.prompt_sources import PromptSources
from kubealign_services.roles.driver.builder import build_prefetchers, critic_rewards
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.rollouts.collector import create_group
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.roles.driver.rollouts.prefetch import ForwardPrefetcher
from kubealign_services.roles.driver.trainer_client import ColocatedScorer, CriticValues, OldLogprobs


def tokens_of(group: RolloutGroup) -> list[int]:
    """Return the tokens of a group's one sample; another attempt has others."""
    number = int(group.group_id)
    return [number + 1] * (number % 3 + 1) + [group.attempt]


def assembled(groups: Sequence[RolloutGroup]) -> Batch:
    return pack([tokens_of(group) for group in groups], [group.group_id for group in groups])


class Model:
    """Returns twice the token of each token. `may` releases its replies; asked: samples of each request."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.may = asyncio.Event()
        self.may.set()
        self.error: Exception | None = None

    async def __call__(self, batch: Batch) -> Tensor:
        self.asked.append(list(batch.sample_ids))
        await self.may.wait()
        if self.error is not None:
            raise self.error
        return 2.0 * batch.tokens


def groups(count: int) -> list[RolloutGroup]:
    return [create_group(str(number), 1, 0, 60.0) for number in range(count)]


async def settled(ahead: ForwardPrefetcher) -> None:
    """Let all runnable tasks run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_request_is_sent_once_as_many_groups_are_generated_as_are_missing() -> None:
    model, all_groups = Model(), groups(8)
    ahead = ForwardPrefetcher(model)
    for count in range(1, 8):
        ahead.submit_ready(all_groups[:count], 8 - count, assembled)
        await settled(ahead)
    # 4 of 8, then 2 of the 4 left, then 1 of 2, and the last when the batch is complete.
    assert model.asked == [["0", "1", "2", "3"], ["4", "5"], ["6"]]
    batch = assembled(all_groups[::-1])
    assert torch.equal(await ahead.get_column(batch), 2.0 * batch.tokens)
    assert model.asked[3:] == [["7"]]
    await ahead.get_column(batch)  # the next step has new weights: results of this step are not reused
    assert model.asked[4:] == [list(batch.sample_ids)]


async def test_requests_are_sequential_and_later_groups_join_the_next_one() -> None:
    model, all_groups = Model(), groups(6)
    ahead = ForwardPrefetcher(model)
    model.may.clear()
    ahead.submit_ready(all_groups[:3], 3, assembled)
    await settled(ahead)
    ahead.submit_ready(all_groups[:5], 1, assembled)
    await settled(ahead)
    assert model.asked == [["0", "1", "2"]]
    model.may.set()
    batch = assembled(all_groups)
    assert torch.equal(await ahead.get_column(batch), 2.0 * batch.tokens)
    assert model.asked == [["0", "1", "2"], ["3", "4", "5"]]


async def test_a_batch_without_prefetch_is_requested_at_once() -> None:
    """Given rows are not prefetched, for example, and one of them may occur twice."""
    model, batch = Model(), assembled(groups(3))
    batch.sample_ids[2] = "1"
    ahead = ForwardPrefetcher(model)
    assert torch.equal(await ahead.get_column(batch), 2.0 * batch.tokens)
    assert model.asked == [["0", "1", "1"]]


async def test_a_regenerated_group_is_requested_again() -> None:
    model, all_groups = Model(), groups(4)
    ahead = ForwardPrefetcher(model)
    ahead.submit_ready(all_groups[:2], 2, assembled)
    await settled(ahead)
    all_groups[1].attempt = 1
    batch = assembled(all_groups)
    assert torch.equal(await ahead.get_column(batch), 2.0 * batch.tokens)
    assert model.asked == [["0", "1"], ["1", "2", "3"]]


async def test_a_failed_request_fails_the_step() -> None:
    model, all_groups = Model(), groups(4)
    ahead = ForwardPrefetcher(model)
    model.error = ValueError("gone")
    ahead.submit_ready(all_groups[:2], 2, assembled)
    await settled(ahead)
    ahead.submit_ready(all_groups[:3], 1, assembled)  # no further requests after a failure
    with pytest.raises(ValueError, match="gone"):
        await ahead.get_column(assembled(all_groups))
    assert model.asked == [["0", "1"]]


async def test_close_cancels_a_running_request() -> None:
    model, all_groups = Model(), groups(4)
    ahead = ForwardPrefetcher(model)
    model.may.clear()
    ahead.submit_ready(all_groups[:2], 2, assembled)
    await settled(ahead)
    await asyncio.wait_for(ahead.close(), 5)
    assert len(asyncio.all_tasks()) == 1


async def test_old_logprobs_and_entropies_come_from_one_pass() -> None:
    """Also where a part of the batch was prefetched."""
    asked: list[list[str]] = []

    async def token_outputs(outputs: Sequence[str], batch: Batch, keep_graph: bool) -> Tensor:
        assert outputs == ("logprobs", "entropy")
        asked.append(list(batch.sample_ids))
        return torch.stack([-1.0 * batch.tokens, 2.0 * batch.tokens], dim=1)

    client: Any = Model()
    client.token_outputs = token_outputs
    policy, all_groups = OldLogprobs(client, ("logprobs", "entropy")), groups(4)
    assert policy.prefetcher is not None
    policy.prefetcher.submit_ready(all_groups[:2], 2, assembled)
    await settled(policy.prefetcher)
    batch = assembled(all_groups[::-1])
    await policy.add_to(batch, StepRecord(1))
    assert asked == [["0", "1"], ["3", "2"]]
    assert torch.equal(batch.token("old_logprobs"), -1.0 * batch.tokens)
    assert torch.equal(batch.token("old_entropy"), 2.0 * batch.tokens)


JUDGE: dict[str, Any] = {"name": "judge", "model": {"path": "/judge"}}
FUNCTION: dict[str, Any] = {"name": "even", "function": {"file": {"path": "/even.py", "name": "reward"}}}
WHOLE: dict[str, Any] = {"placement": "WithTrainer"}
WITHOUT_KL: dict[str, Any] = {"ppo": {"kl": {"fixed": {"coefficient": 0.0}}}}


def job(**spec: Any) -> AlignmentJob:
    document = {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        "metadata": {"name": "early"},
        "spec": {
            "seed": 1,
            "maxSteps": 1,
            "policy": {"model": {"path": "/model"}},
            "algorithm": {"ppo": {}},
            "data": {"prompts": {"source": {"path": "/prompts.jsonl"}}},
            "rewards": [JUDGE],
            "critic": {"model": {"path": "/judge"}},
            "rollout": {"engine": {"torch": {}}},
        }
        | spec,
    }
    return AlignmentJob.model_validate(document)


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ({}, ["values", "log-probabilities"]),
        ({"rollout": {"engine": {"torch": {}}, "placement": "WithTrainer"}}, ["values"]),
        ({"checkpoint": {"recordBatches": True}}, []),
        (
            {"reference": WHOLE, "rewards": [JUDGE | {"placement": "WithCritic"}]},
            ["values", "scores", "log-probabilities", "reference"],
        ),
        (
            {
                "reference": WHOLE,
                "rewards": [JUDGE | {"placement": "WithCritic"}],
                "rollout": {"engine": {"torch": {}}, "placement": "WithTrainer"},
            },
            ["values", "scores"],
        ),
        ({"algorithm": WITHOUT_KL, "rewards": [FUNCTION]}, []),
        (
            {
                "algorithm": WITHOUT_KL,
                "rewards": [FUNCTION],
                "rollout": {"engine": {"torch": {}}, "scoring": "OnArrival"},
            },
            ["values", "log-probabilities"],
        ),
        ({"rollout": {"engine": {"torch": {}}, "scoring": "WholeBatch"}}, []),
        ({"reference": WHOLE, "overlap": {"scoreOnArrival": False}}, []),
        ({"reference": WHOLE}, ["values", "log-probabilities", "reference"]),
        ({"rewards": [FUNCTION]}, ["values", "log-probabilities"]),
        (
            {
                "algorithm": {"onPolicyDistillation": {"distribution": {}}},
                "critic": None,
                "teachers": [{"name": "math", "model": {"path": "/m"}}],
                "data": {
                    "prompts": {"mixture": [{"name": "sums", "source": {"path": "/s"}, "teacher": "math"}]}
                },
                "rewards": [FUNCTION],
            },
            ["values", "log-probabilities"],
        ),
    ],
    ids=[
        "apart",
        "the trainer's accelerator is the engine's meanwhile",
        "to be replayed",
        "all placed with trainer and critic",
        "all in two processes",
        "a function gives every sample the same",
        "asked for",
        "refused",
        "nothing is scored on arrival",
        "a reward model sees parts",
        "the reference sees parts",
        "several teachers see parts",
    ],
)
def test_which_columns_are_prefetched(spec: dict[str, Any], asked: list[str]) -> None:
    client: Any = Model()
    client.values = client.logprobs = client.reference_logprobs = client
    policy, values = OldLogprobs(client, ["logprobs"]), CriticValues(client)
    alignment_job = job(**spec)
    rewards = [reward.name for reward in critic_rewards(alignment_job)]
    has_reference = (reference := alignment_job.spec.effective_reference) is not None and (
        reference.placement is ReferencePlacement.WITH_TRAINER
    )
    colocated = ColocatedScorer(client, rewards, client.reference_logprobs if has_reference else None)
    names = {
        values.prefetcher: "values",
        policy.prefetcher: "log-probabilities",
        colocated.reward_prefetcher: "scores",
        colocated.reference_prefetcher: "reference",
    }
    assert [names[each] for each in build_prefetchers(alignment_job, policy, values, colocated)] == asked
    nothing = ColocatedScorer(None, [], reference=None)
    assert build_prefetchers(job(), OldLogprobs(client, []), CriticValues(None), nothing) == []


async def test_scores_of_finished_groups_are_prefetched() -> None:
    """Also where a group was regenerated: each sequence has one score of each reward model."""
    asked: list[list[str]] = []

    async def scores(batch: Batch, names: list[str]) -> dict[str, Tensor]:
        asked.append(list(batch.sample_ids))
        totals = torch.stack(
            [sequence.sum() for sequence in batch.tokens.split(batch.cu_seqlens.diff().tolist())]
        )
        return {name: totals.float() * (index + 1) for index, name in enumerate(names)}

    client: Any = Model()
    client.scores = scores
    client.reference_logprobs = client
    scorer, all_groups = ColocatedScorer(client, ["judge", "style"], client.reference_logprobs), groups(4)
    assert scorer.reward_prefetcher is not None and scorer.reference_prefetcher is not None
    for prefetcher in (scorer.reward_prefetcher, scorer.reference_prefetcher):
        prefetcher.submit_ready(all_groups[:2], 2, assembled)
        await settled(prefetcher)
    all_groups[1].attempt = 1
    batch = assembled(all_groups[::-1])
    await scorer.score(batch, StepRecord(1))
    assert asked == [["0", "1"], ["3", "2", "1"]] == client.asked
    totals = [sum(tokens_of(group)) for group in all_groups[::-1]]
    assert batch.sequence_columns["reward.judge"].tolist() == totals
    assert batch.sequence_columns["reward.style"].tolist() == [2 * total for total in totals]
    assert batch.sequence_columns["reward.judge"].dtype is torch.float64
    assert torch.equal(batch.token("reference_logprobs"), 2.0 * batch.tokens)


async def test_a_model_of_the_critic_scores_only_the_samples_of_its_sources() -> None:
    """The rows are numbered through both sources: sums has rows 0 and 1, poems row 2."""
    asked: list[tuple[list[str], list[str]]] = []

    async def scores(batch: Batch, names: list[str]) -> dict[str, Tensor]:
        asked.append((list(batch.sample_ids), names))
        firsts = batch.tokens[batch.cu_seqlens[:-1].long()].float()
        return {name: firsts * (index + 1) for index, name in enumerate(names)}

    client: Any = Model()
    client.scores = scores
    order = MixtureOrder([MixedSource("sums", 1.0, 2), MixedSource("poems", 1.0, 1)], seed=1)
    sources = {
        "exact": PromptSources(frozenset({"sums"}), order),
        "style": PromptSources(frozenset({"poems"}), order),
        "none": PromptSources(frozenset({"digits"}), order),
    }
    scorer = ColocatedScorer(client, ["exact", "style", "none", "judge"], None, sources=sources)
    batch = pack([[5], [6], [7]], ["0/2#0", "0/0#0", "1/1#0"])
    await scorer.score(batch, StepRecord(1))
    assert asked == [
        (["0/0#0", "1/1#0"], ["exact"]),
        (["0/2#0"], ["style"]),
        (["0/2#0", "0/0#0", "1/1#0"], ["judge"]),
    ]
    assert read_scores(batch, "exact") == [None, 6.0, 7.0]
    assert read_scores(batch, "style") == [5.0, None, None]
    assert read_scores(batch, "none") == [None, None, None]
    assert read_scores(batch, "judge") == [5.0, 6.0, 7.0]
    assert "applies.judge" not in batch.sequence_columns


async def test_a_model_of_the_critic_scores_the_last_sequence_of_each_sample() -> None:
    asked: list[list[str]] = []

    async def scores(batch: Batch, names: list[str]) -> dict[str, Tensor]:
        asked.append(list(batch.sample_ids))
        firsts = batch.tokens[batch.cu_seqlens[:-1].long()].float()
        return {name: firsts * (index + 1) for index, name in enumerate(names)}

    client: Any = Model()
    client.scores = scores
    scorer = ColocatedScorer(client, ["judge", "style"], None)
    batch = pack([[5], [6], [7], [8]], ["0/2#0", "0/2#1/0", "0/2#1/1", "1/1#0"])
    batch.token_columns["loss_mask"] = torch.ones(4)
    batch.sequence_columns["sample"] = torch.tensor([0, 1, 1, 2])
    await scorer.score(batch, StepRecord(1))
    assert asked == [["0/2#0", "0/2#1/1", "1/1#0"]]
    assert read_scores(batch, "judge") == [5.0, 7.0, 7.0, 8.0]
    assert read_scores(batch, "style") == [10.0, 14.0, 14.0, 16.0]

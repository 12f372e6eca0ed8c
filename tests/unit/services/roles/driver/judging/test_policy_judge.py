"""Rewards by the policy's judgements over a bus, with a scripted rollout worker."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

from kubealign.spec.sections.reward_servers import PolicyJudge
from kubealign.spec.sections.score_calls import RewardErrorPolicy
from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import Batch
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.driver.judging.judgements import JudgementPlan, Judgements
from kubealign_services.roles.driver.judging.policy_model import PolicyModel
from kubealign_services.roles.driver.judging.scorer import ArrivalScorer
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.rollouts.group_buffer import GroupBuffer, GroupPlan
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.roles.driver.rollouts.prompt_source import ListPrompts
from kubealign_services.scoring.servers.judge.judge_reward import JudgedReward
from kubealign_services.scoring.servers.server_scorer import ServerScorer

pytestmark = pytest.mark.timeout(60)

SAMPLING = rollout_pb2.Sampling(max_tokens=4, temperature=1.0, top_p=1.0)
#: Prompt -> responses of the samples of its group.
RESPONSES = {"p": ["long answer", "short"], "q": ["long answer", "medium one"]}
ROWS: Any = [
    PreparedRow(row, [row + 1], prompt, {"old": "medium one"}) for row, prompt in enumerate(RESPONSES)
]
PAIRWISE: dict[str, Any] = {
    "task": {"pairwise": {"baselineColumn": "old"}},
    "template": "{first}|{second}",
}
POINTWISE: dict[str, Any] = {"task": {"pointwise": {}}, "template": "{response}"}
JUDGED = "judge@own"
#: Work item of a judgement -> text of the judgement; None: no response comes.
Answer = Callable[[rollout_pb2.WorkItem, str], str | None]


def prefer_longer(item: rollout_pb2.WorkItem, question: str) -> str:
    first, second = question.split("|")
    winner = "tie" if len(first) == len(second) else "A" if len(first) > len(second) else "B"
    return json.dumps({"winner": winner, "explanation": "by length"})


def score_letters(item: rollout_pb2.WorkItem, question: str) -> str:
    return f"Rating: {len(question) % 10 + 1}"


def to_rollout(item: rollout_pb2.WorkItem, sample: int, response: str, version: int) -> rollout_pb2.Rollout:
    """Return a sample of two tokens, the first of them of the version before."""
    length = len(item.prompt_tokens) + 2
    sequence = Batch(
        tokens=torch.tensor([*item.prompt_tokens, 8, 9], dtype=torch.int32),
        cu_seqlens=torch.tensor([0, length], dtype=torch.int32),
        sample_ids=[f"{item.group_id}#{sample}"],
        token_columns={
            "loss_mask": torch.tensor([0] * (length - 2) + [1, 1], dtype=torch.uint8),
            "weight_version": torch.tensor([-1] * (length - 2) + [version, version + 1], dtype=torch.int32),
        },
    )
    return rollout_pb2.Rollout(
        fence=item.fence,
        group_id=item.group_id,
        attempt=item.attempt,
        sample=sample,
        worker="w",
        sequence=encode(sequence),
        purpose=item.purpose,
        columns=item.columns,
        finish_reason=rollout_pb2.FINISH_REASON_STOP,
        response=response,
    )


class Worker:
    """Rollout worker that answers judgements by a function, and records their work items.

    version: that of the first token of each sample.
    """

    def __init__(self, bus: MemoryBus, answer: Answer) -> None:
        self._bus = bus
        self._answer = answer
        self.judged: list[rollout_pb2.WorkItem] = []
        self.version = 0
        self.pulled = asyncio.Event()

    async def run(self) -> None:
        while True:
            for delivery in await self._bus.pull("work", "rollout", 8, 1.0):
                item = rollout_pb2.WorkItem.FromString(delivery.data)
                prompt = json.loads(item.columns)["prompt"]
                if item.purpose == JUDGED:
                    self.judged.append(item)
                    self.pulled.set()
                    text = self._answer(item, prompt)
                    responses = [] if text is None else [text]
                else:
                    responses = RESPONSES[prompt][: item.samples]
                for sample, response in enumerate(responses):
                    rollout = to_rollout(item, sample, response, self.version)
                    if response == "FAILED":
                        rollout.finish_reason, rollout.error = rollout_pb2.FINISH_REASON_FAILED, "no memory"
                    await self._bus.publish(
                        "rollouts", rollout.SerializeToString(), f"{item.purpose}:{item.group_id}:{sample}"
                    )
                await delivery.ack()


class Judged:
    """A policy judge with its collector, and the worker that answers."""

    def __init__(self, bus: MemoryBus, collector: RolloutCollector, worker: Worker) -> None:
        self.bus, self.worker = bus, worker
        self._collector = collector

    async def take(self, version: int = 0, prompts: int = 1, samples: int = 2) -> list[RolloutGroup]:
        """Return the groups of the first prompts, with their scores."""
        plan = GroupPlan(1, prompts, samples, SAMPLING, 20.0, 0, 0)
        supply = ListPrompts(ROWS[:prompts], f"step-{version}")
        buffer = GroupBuffer(self._collector, supply, plan, "train", ("own",))
        try:
            return await buffer.take_batch(version)
        finally:
            buffer.close()


@asynccontextmanager
async def judging(
    answer: Answer,
    entry: dict[str, Any],
    on_error: RewardErrorPolicy = RewardErrorPolicy.SKIP,
    timeout: float = 20.0,
    max_prompt_tokens: int | None = None,
) -> AsyncIterator[Judged]:
    spec = PolicyJudge.model_validate(entry)
    bus = MemoryBus()
    worker = Worker(bus.new_connection(), answer)
    task = asyncio.create_task(worker.run())

    def render(question: str) -> PreparedRow:
        return PreparedRow(0, [ord(letter) for letter in question], question)

    try:
        async with RolloutCollector(bus, 1, asyncio.Event(), lambda text: None) as collector:
            judgements = Judgements(collector, JudgementPlan(7, JUDGED, SAMPLING, timeout))
            model = PolicyModel(spec, judgements, render, max_prompt_tokens)
            reward = JudgedReward(spec, model)
            scorer = ArrivalScorer(ServerScorer("own", "d", reward, on_error), model, collector.deliver)
            collector.add_scorer("own", scorer.request)
            yield Judged(bus, collector, worker)
            await scorer.close()
            await reward.close()
            judgements.close()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def rewards(groups: Sequence[RolloutGroup]) -> list[list[float | None]]:
    return [[group.reward(sample, "own") for sample in sorted(group.rollouts)] for group in groups]


async def test_a_comparison_is_judged_in_both_orders_and_a_tie_counts_half() -> None:
    async with judging(prefer_longer, PAIRWISE) as judged:
        groups = await judged.take(prompts=2)
    # Beside "medium one": "long answer" is longer, "short" shorter, and the last response equal.
    assert rewards(groups) == [[1.0, 0.0], [1.0, 0.5]]
    won = groups[0].score(0, "own")
    assert won.explanation == "won as the first response: by length\nwon as the second response: by length"


async def test_a_judge_that_prefers_the_first_response_gives_half() -> None:
    async with judging(lambda item, question: '{"winner": "A"}', PAIRWISE) as judged:
        assert rewards(await judged.take()) == [[0.5, 0.5]]


async def test_a_question_is_asked_once_for_each_version_which_is_recorded() -> None:
    async with judging(score_letters, POINTWISE) as judged:
        groups = await judged.take(prompts=2)
        questions = ["long answer", "medium one", "short"]
        assert sorted(json.loads(item.columns)["prompt"] for item in judged.worker.judged) == questions
        # 11, 5, 11 and 10 letters: ratings 2, 6, 2 and 1 on a scale from 1 to 10.
        assert rewards(groups) == [
            [pytest.approx(1 / 9), pytest.approx(5 / 9)],
            [pytest.approx(1 / 9), pytest.approx(0.0)],
        ]
        metrics = groups[0].score(1, "own").metrics
        # Five letters and two tokens.
        assert dict(metrics) == {"judge.tokens": 7, "judge.cached": 0, "judge.version": 0}
        judged.worker.version = 3
        later = await judged.take(version=3)
        assert [item.min_version for item in judged.worker.judged] == [0, 0, 0, 3, 3]
        assert later[0].score(0, "own").metrics["judge.version"] == 3
        judged.worker.version = 4
        again = await judged.take(version=4, samples=1)
        assert again[0].score(0, "own").metrics["judge.cached"] == 0


async def test_a_judgement_that_cannot_be_used_is_sampled_again_with_another_seed() -> None:
    def answer(item: rollout_pb2.WorkItem, question: str) -> str:
        asked = [each for each in judged.worker.judged if each.columns == item.columns]
        return "no idea" if len(asked) == 1 else "Score: 10"

    async with judging(answer, POINTWISE) as judged:
        assert rewards(await judged.take()) == [[1.0, 1.0]]
        seeds = {tuple(item.seeds) for item in judged.worker.judged}
        assert len(judged.worker.judged) == len(seeds) == 4


@pytest.mark.parametrize(
    ("text", "kind", "cause"),
    [
        ("no idea", "error", "the policy's judgement: the judge gives no score: 'no idea'"),
        ("Score: 11", "error", "the score 11, which is not from 1 to 10"),
        ("FAILED", "error", "rollout worker w: no memory"),
        (None, "timeout", "no judgement came from the rollout workers within 0.2 s"),
    ],
)
async def test_a_response_without_a_judgement_is_treated_by_the_policy_of_errors(
    text: str | None, kind: str, cause: str
) -> None:
    for on_error, reward in ((RewardErrorPolicy.SKIP, None), (RewardErrorPolicy.ZERO, 0.0)):
        timeout = 0.2 if text is None else 20.0
        async with judging(lambda item, question: text, POINTWISE, on_error, timeout) as judged:
            groups = await judged.take(samples=1)
            assert len(judged.worker.judged) == 2, "a judgement and its repetition"
        score = groups[0].score(0, "own")
        assert (rewards(groups), score.failure) == ([[reward]], kind)
        assert cause in score.explanation


async def test_a_question_without_room_is_not_asked() -> None:
    async with judging(score_letters, POINTWISE, max_prompt_tokens=10) as judged:
        groups = await judged.take()
        assert rewards(groups) == [[None, pytest.approx(5 / 9)]]
        assert (
            "the question has 11 tokens, and the context has room for 10"
            in groups[0].score(0, "own").explanation
        )
        assert len(judged.worker.judged) == 1


async def test_judgements_that_the_bus_has_lost_are_published_again() -> None:
    def answer(item: rollout_pb2.WorkItem, question: str) -> str | None:
        return None if len(judged.worker.judged) == 1 else "Score: 10"

    async with judging(answer, POINTWISE) as judged:
        taking = asyncio.create_task(judged.take(samples=1))
        async with asyncio.timeout(20):
            await judged.worker.pulled.wait()
        await judged.bus.simulate_data_loss()
        assert rewards(await taking) == [[1.0]]
        first, second = judged.worker.judged
        assert (first.group_id, first.seeds) == (second.group_id, second.seeds)

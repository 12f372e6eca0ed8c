"""Revision and comparison through the bus, with a scripted policy."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kubealign.v1 import rollout_pb2
from kubealign_services.data.prepared import PreparedJob, PreparedRow
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.generation.contract import FinishReason, GeneratedSample
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.driver.data_generation.builder import build_row_maker
from kubealign_services.roles.driver.data_generation.state import DataGenerationState
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.rollout.messages import to_given_rollouts, to_rollout
from support.making_in_process import generate_job
from support.prepared_report import report

TOKENIZER = train_character_tokenizer(
    ["abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ.,!?:0123456789|"]
)
PRINCIPLES = ["kind", "brief"]

#: (prompt, number of the sample) -> response.
Says = Callable[[str, int], str]
#: Question -> the log-probabilities of the answers.
Finds = Callable[[str], list[float]]


def ids(text: str) -> list[int]:
    result: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return result


async def answer(bus: MemoryBus, says: Says, finds: Finds, asked: list[str]) -> None:
    while True:
        for delivery in await bus.pull("work", "rollout", 8, 1.0):
            item = rollout_pb2.WorkItem.FromString(delivery.data)
            prompt = TOKENIZER.decode(list(item.prompt_tokens))
            asked.append(prompt)
            for rollout in _answers(item, prompt, says, finds):
                await bus.publish(
                    "rollouts", rollout.SerializeToString(), f"{item.group_id}:{rollout.sample}"
                )
            await delivery.ack()


def _answers(item: rollout_pb2.WorkItem, prompt: str, says: Says, finds: Finds) -> list[rollout_pb2.Rollout]:
    if item.continuations:
        logprobs = [[value] for value in finds(prompt)]
        return to_given_rollouts(item, logprobs, 0, "w")
    texts = [says(prompt, sample) for sample in range(item.samples)]
    return [
        to_rollout(
            item,
            GeneratedSample(
                "r", n, ids(text), *[[0.0] * len(text)] * 2, [0] * len(text), FinishReason.STOP, text
            ),
            "w",
        )
        for n, text in enumerate(texts)
    ]


@asynccontextmanager
async def run_step(
    folder: Path,
    entry: dict[str, Any],
    says: Says,
    finds: Finds = lambda question: [],
    prompts: tuple[str, ...] = ("hi",),
    context: int | None = None,
) -> AsyncIterator[tuple[list[dict[str, Any]], DataGenerationState, dict[str, float], list[str]]]:
    """Return the rows of one step, its state and metrics, and all requests."""
    rows = [PreparedRow(row=n, prompt_tokens=ids(text), prompt_text=text) for n, text in enumerate(prompts)]
    TOKENIZER.save_pretrained(folder / "model")
    prepared = PreparedJob(folder, {"policy": folder / "model"}, report(len(rows), context), rows, None)  # type: ignore[arg-type]
    bus, asked = MemoryBus(), list[str]()
    worker = asyncio.create_task(answer(bus.new_connection(), says, finds, asked))
    try:
        async with RolloutCollector(bus, 1, asyncio.Event(), lambda text: None) as exchange:
            job = generate_job(entry, rollout={"sampling": {"maxTokens": 4}}, seed=1)
            maker = build_row_maker(job, prepared, exchange)
            state, step = DataGenerationState(step=1), StepRecord(1)
            result = await maker.make(range(len(rows)), state, step)
            yield result, state, step.metrics, asked
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


REVISE = {
    "principles": PRINCIPLES,
    "critique": "{prompt}|{response}|{principle}?",
    "revision": "{prompt}|{response}|{principle}|{critique}:",
}


def reviser(prompt: str, sample: int) -> str:
    """Return responses no0 and no1, critiques `bad`, and revisions with one more x each time."""
    if prompt.endswith("?"):
        return "bad"
    return prompt.split("|")[1] + "x" if prompt.endswith(":") else f"n{sample}"


async def test_each_response_is_criticised_and_revised_several_times(tmp_path: Path) -> None:
    entry = {"samplesPerPrompt": 2, "revise": REVISE | {"times": 2}}
    async with run_step(tmp_path, entry, reviser) as (rows, state, figures, asked):
        assert [row["response"] for row in rows] == ["n0xx", "n1xx"]
        assert [row["first_response"] for row in rows] == ["n0", "n1"]
        assert all(row["critiques"] == ["bad", "bad"] and row["prompt"] == "hi" for row in rows)
        assert figures["revision/changed_share"] == 1.0 and not state.left_out
        first, second = rows[0]["principles"]
        assert {first, second} <= set(PRINCIPLES)
        for expected in (
            f"hi|n0|{first}?",
            f"hi|n0|{first}|bad:",
            f"hi|n0x|{second}?",
            f"hi|n0x|{second}|bad:",
        ):
            assert expected in asked
        # One group of two samples, then for each sample two questions, twice.
        assert len(asked) == 1 + 2 * 2 * 2


async def test_prompts_without_room_for_an_answer_are_skipped(tmp_path: Path) -> None:
    """hi|n0|brief? has 11 characters, hi|n0|brief|bad: 15; four tokens follow."""
    entry = {"revise": REVISE | {"principles": ["brief"]}}
    async with run_step(tmp_path, entry, reviser, context=18) as (rows, state, _, asked):
        assert rows == [] and state.left_out == {"too_long": 1}
        assert asked == ["hi", "hi|n0|brief?"]
    async with run_step(tmp_path, entry, reviser, context=20) as (rows, state, _, _):
        assert [row["response"] for row in rows] == ["n0x"] and state.left_out == {}


COMPARE = {
    "principles": ["kind"],
    "prompt": "{prompt} 1:{first} 2:{second} {principle}",
    "answers": ["A", "B"],
}


async def test_pairs_are_compared_in_both_orders(tmp_path: Path) -> None:
    """Log-probabilities: 0 for A and -1 for B where n0 or n3 stands first, 0 and -3 elsewhere. First pair:
    p(0, 1) = 1 / (1 + e^-1) = 0.7311, p(1, 0) = 1 / (1 + e^-3) = 0.9526, so that n0 is better with
    (0.7311 + 1 - 0.9526) / 2 = 0.3892."""

    def finds(question: str) -> list[float]:
        return [0.0, -1.0 if "1:n0" in question or "1:n3" in question else -3.0]

    entry = {"samplesPerPrompt": 4, "compare": COMPARE}
    async with run_step(tmp_path, entry, lambda prompt, n: f"n{n}", finds) as (rows, _, figures, asked):
        assert [(row["chosen"], row["rejected"]) for row in rows] == [("n1", "n0"), ("n2", "n3")]
        for row in rows:
            assert row["chosen_rating"] == pytest.approx(1 - 0.389242, abs=1e-6)
            assert row["rejected_rating"] == pytest.approx(0.389242, abs=1e-6)
            assert row["principle"] == "kind"
        assert asked[1:] == [
            "hi 1:n0 2:n1 kind",
            "hi 1:n1 2:n0 kind",
            "hi 1:n2 2:n3 kind",
            "hi 1:n3 2:n2 kind",
        ]
        assert figures["comparison/first_share"] == pytest.approx((0.7310586 + 0.9525741) / 2, abs=1e-6)
        assert figures["comparison/confidence"] == pytest.approx(2 * 0.389242 * -1 + 1, abs=1e-5)


async def test_equal_pairs_and_ties_give_no_row(tmp_path: Path) -> None:
    texts = {"hi": ["n", "n"], "ho": ["n", "m"]}
    entry = {"samplesPerPrompt": 2, "compare": COMPARE}
    async with run_step(
        tmp_path, entry, lambda prompt, n: texts[prompt][n], lambda question: [-0.5, -2.0], ("hi", "ho")
    ) as (rows, state, _, asked):
        assert rows == [] and state.left_out == {"alike": 1, "ties": 1}
        assert len(asked) == 2 + 2


async def test_the_same_job_generates_the_same_rows(tmp_path: Path) -> None:
    entry = {"samplesPerPrompt": 2, "revise": REVISE | {"times": 2}}
    async with (
        run_step(tmp_path, entry, reviser) as (first, *_),
        run_step(tmp_path, entry, reviser) as (second, *_),
    ):
        assert json.dumps(first) == json.dumps(second)

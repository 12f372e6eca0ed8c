"""Selection of samples as rows, and the rows' format."""

from dataclasses import replace
from typing import Any

import pytest

from kubealign.spec.algorithms import SampleSelection
from kubealign.spec.sections.data import PromptDataset
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.roles.driver.data_generation.row_format import RowFormatter
from kubealign_services.roles.driver.data_generation.samples import PolicySample
from kubealign_services.roles.driver.data_generation.selection import select_rows
from kubealign_services.roles.driver.data_generation.state import DataGenerationState

TEXT = RowFormatter(PromptDataset.model_validate({"source": {"path": "x"}}))
CHAT = RowFormatter(
    PromptDataset.model_validate({"source": {"path": "x"}, "format": {"chat": {"messages": "talk"}}})
)
ROW = PreparedRow(row=7, prompt_tokens=[1], prompt_text="2+2=", columns={"answer": 4})
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
CHAT_ROW = PreparedRow(row=7, prompt_tokens=[1], prompt_text="...", columns={"answer": 4, "talk": TALK})


def samples(
    rewards: list[float | None], row: PreparedRow = ROW, texts: str = "abcdefgh"
) -> list[PolicySample]:
    return [
        PolicySample(
            row=row,
            number=number,
            text=texts[number],
            tokens=(5,),
            truncated=number == 0,
            rewards={} if reward is None else {"exact": reward},
            reward=None if reward is None else 2 * reward,
        )
        for number, reward in enumerate(rewards)
    ]


def rows(
    keep: SampleSelection, some: list[PolicySample], form: RowFormatter = TEXT
) -> tuple[list[dict[str, Any]], DataGenerationState]:
    state = DataGenerationState()
    return select_rows(keep, some, form, state), state


def test_all_samples_become_rows_with_their_columns() -> None:
    selected, _ = rows(SampleSelection.ALL, samples([1.0, 0.5]))
    judged = {"reward": 2.0, "reward.exact": 1.0}
    assert selected[0] == {"answer": 4, "prompt": "2+2=", "response": "a", "truncated": True} | judged
    assert selected[1]["response"] == "b" and selected[1]["reward"] == 1.0


def test_without_rewards_there_are_no_reward_columns() -> None:
    selected, _ = rows(SampleSelection.ALL, samples([None]))
    assert selected == [{"answer": 4, "prompt": "2+2=", "response": "a", "truncated": True}]


def test_the_best_is_the_first_of_those_with_the_highest_reward() -> None:
    other = PreparedRow(row=8, prompt_tokens=[1], prompt_text="1+1=")
    selected, _ = rows(SampleSelection.BEST, samples([0.0, 3.0, 3.0]) + samples([-1.0, -2.0], other))
    assert [(row["prompt"], row["response"]) for row in selected] == [("2+2=", "b"), ("1+1=", "a")]


def test_the_best_and_the_worst_are_a_preference_with_their_rewards() -> None:
    selected, state = rows(SampleSelection.BEST_AND_WORST, samples([1.0, 4.0, -1.0, 4.0, -1.0]))
    assert [(row["chosen"], row["rejected"]) for row in selected] == [("b", "c")]
    assert (selected[0]["chosen_rating"], selected[0]["rejected_rating"]) == (8.0, -2.0)
    assert (selected[0]["chosen_reward.exact"], selected[0]["rejected_reward.exact"]) == (4.0, -1.0)
    assert state.left_out == {}


@pytest.mark.parametrize(("rewards", "texts"), [([2.0, 2.0], "ab"), ([1.0, 2.0], "aa")])
def test_prompts_with_equal_samples_are_skipped_and_counted(rewards: list[float], texts: str) -> None:
    selected, state = rows(SampleSelection.BEST_AND_WORST, samples(list(rewards), texts=texts))
    assert selected == [] and state.left_out == {"alike": 1}


def without_reward(some: list[PolicySample]) -> list[PolicySample]:
    return [replace(sample, rewards={"exact": None}, reward=None) for sample in some]


def test_samples_to_which_no_reward_applies_are_not_chosen() -> None:
    """They would be better than samples with rewards below 0, were they taken for 0."""
    other = PreparedRow(row=8, prompt_tokens=[1], prompt_text="1+1=")
    some = (
        samples([-2.0, -1.0])
        + without_reward(samples([5.0], texts="z"))
        + without_reward(samples([1.0], other))
    )
    selected, state = rows(SampleSelection.BEST, some)
    assert [row["response"] for row in selected] == ["b"] and state.left_out == {"unrewarded": 1}
    selected, state = rows(SampleSelection.BEST_AND_WORST, some)
    assert [(row["chosen"], row["rejected"]) for row in selected] == [("b", "a")]
    selected, _ = rows(SampleSelection.ALL, some)
    assert [(row["reward"], row["reward.exact"]) for row in selected[1:3]] == [(-2.0, -1.0), (None, None)]


def test_messages_end_with_the_response() -> None:
    selected, _ = rows(SampleSelection.ALL, samples([None], CHAT_ROW), CHAT)
    answer = {"role": "assistant", "content": "a"}
    assert selected == [{"answer": 4, "messages": [*TALK, answer], "truncated": True}]


def test_preferences_of_messages_end_with_either_response() -> None:
    selected, _ = rows(SampleSelection.BEST_AND_WORST, samples([0.0, 1.0], CHAT_ROW), CHAT)
    assert selected[0]["chosen"] == [*TALK, {"role": "assistant", "content": "b"}]
    assert selected[0]["rejected"] == [*TALK, {"role": "assistant", "content": "a"}]
    assert "prompt" not in selected[0] and "talk" not in selected[0]

"""Questions to a judge."""

from typing import Any

import pytest

from kubealign.spec.sections.reward_servers import JudgeReward
from kubealign_services.scoring.servers.contract import ServerSample
from kubealign_services.scoring.servers.judge.questions import build_questions, chat_request, estimate_tokens

SAMPLE = ServerSample("What is 6*7?", "It is {42}.", {"answer": 42, "old": "41", "hint": ["six", "é"]})


def judge(task: dict[str, Any], **fields: Any) -> JudgeReward:
    return JudgeReward.model_validate({"url": "http://judge/v1", "model": "m", "task": task} | fields)


def test_a_pointwise_question_shows_prompt_response_rubric_and_scale() -> None:
    scale = {"lowest": 0, "highest": 4}
    [question] = build_questions(judge({"pointwise": {"rubric": "Be terse.", "scale": scale}}), SAMPLE)
    for part in ("What is 6*7?", "It is {42}.", "Be terse.", "0 (worst) to 4 (best)", '{"explanation": '):
        assert part in question


def test_a_reference_question_shows_the_answer() -> None:
    [question] = build_questions(judge({"reference": {}}), SAMPLE)
    assert "<reference>\n42\n</reference>" in question


def test_a_comparison_is_asked_in_both_orders() -> None:
    first, second = build_questions(judge({"pairwise": {"baselineColumn": "old"}}), SAMPLE)
    assert first.index("It is {42}.") < first.index("\n41\n")
    assert second.index("\n41\n") < second.index("It is {42}.")


@pytest.mark.parametrize("task", [{"reference": {}}, {"pairwise": {"baselineColumn": "answer"}}])
def test_a_row_without_its_text_has_no_question(task: dict[str, Any]) -> None:
    assert build_questions(judge(task), ServerSample("p", "r", {"answer": None})) == []


def test_a_template_has_columns_and_braces() -> None:
    template = "{prompt}|{response}|{hint}|{{}}"
    spec = judge({"pointwise": {}}, template=template)
    assert spec.template_columns == ["hint"]
    assert build_questions(spec, SAMPLE) == ['What is 6*7?|It is {42}.|["six", "é"]|{}']


def test_requests_have_the_settings() -> None:
    spec = judge({"pointwise": {}}, temperature=0.0, parameters={"top_p": 0.5})
    assert chat_request(spec, "q") == {
        "model": "m",
        "messages": [{"role": "user", "content": "q"}],
        "max_tokens": 512,
        "temperature": 0.0,
        "top_p": 0.5,
    }
    other = chat_request(judge({"pointwise": {}}, parameters={"max_completion_tokens": 9}), "q")
    assert other.keys() == {"model", "messages", "max_completion_tokens"}


def test_tokens_are_estimated_by_characters_and_the_longest_answer() -> None:
    assert estimate_tokens(judge({"pointwise": {}}, maxTokens=100), "x" * 41) == 110

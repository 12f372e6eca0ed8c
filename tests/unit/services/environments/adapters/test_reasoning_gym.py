"""Tasks of the real reasoning-gym."""

import pytest

from kubealign.spec.workflows.environments import ReasoningGymEnvironment
from kubealign_services.environments.adapters.reasoning_gym import ReasoningGymTask
from kubealign_services.environments.contract import EnvironmentFailed, Observation
from support.environment_packages import needs_package

pytestmark = needs_package("reasoning_gym", "reasoning-gym")

SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def question_of(environment: ReasoningGymTask, seed: int) -> str:
    observation = environment.reset(seed, {})
    assert isinstance(observation, Observation)
    return observation.text


def test_a_seed_determines_the_question() -> None:
    environment = ReasoningGymTask(ReasoningGymEnvironment(dataset="chain_sum"), SUMS)
    questions = [question_of(environment, seed) for seed in range(20)]
    assert len(set(questions)) > 10
    other = ReasoningGymTask(ReasoningGymEnvironment(dataset="chain_sum"), SUMS)
    assert [question_of(other, seed) for seed in range(20)] == questions
    # Seeds of groups have 63 bits, those of the package 32.
    assert question_of(environment, 2**32 + 3) == questions[3]


def test_the_tasks_own_verifier_scores_the_answer() -> None:
    environment = ReasoningGymTask(ReasoningGymEnvironment(dataset="chain_sum"), SUMS)
    for seed in range(5):
        expression = question_of(environment, seed).removesuffix(" =").rpartition(":")[2]
        answer = str(eval(expression.strip().removesuffix("=")))
        right = environment.step(f" {answer}\n")
        assert (right.reward, right.done) == (1.0, True)
        assert environment.step("no idea").reward == 0.0
        empty = environment.step("")
        assert (empty.reward, empty.metrics) == (0.0, {"answered": 0.0})


def test_the_answer_is_the_text_in_its_tag() -> None:
    spec = ReasoningGymEnvironment(dataset="chain_sum", answer_tag="answer")
    environment = ReasoningGymTask(spec, SUMS)
    expression = question_of(environment, 3).removesuffix(" =").rpartition(":")[2]
    answer = str(eval(expression.strip().removesuffix("=")))
    assert environment.step(f"I think <answer>0</answer>, no <answer>{answer}</answer>.").reward == 1.0
    bare = environment.step(answer)
    assert (bare.reward, bare.metrics) == (0.0, {"answered": 0.0})


def test_an_unknown_task_is_refused_with_similar_names() -> None:
    with pytest.raises(EnvironmentFailed, match=r"none of the \d+ registered tasks; .* chain_sum") as raised:
        ReasoningGymTask(ReasoningGymEnvironment(dataset="chain_sums"), {})
    assert raised.value.permanent

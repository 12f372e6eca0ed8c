"""Results and tasks of verifiers, without the package."""

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from kubealign_services.agents.verifiers.results import metric_name, read_result
from kubealign_services.agents.verifiers.tasks import TaskTable, make_row
from kubealign_services.environments.contract import EnvironmentFailed


def make_trace(name: str, rewards: dict[str, float]) -> Any:
    scores = {key: SimpleNamespace(score=value, weight=1.0) for key, value in rewards.items()}
    reward = sum(rewards.values())
    agent = SimpleNamespace(name=name)
    return SimpleNamespace(agent=agent, rewards=scores, reward=reward, metrics={"calls": None}, errors=[])


def make_episode(*traces: Any) -> Any:
    return SimpleNamespace(ok=True, traces=list(traces), errors=[])


def test_the_reward_is_that_of_the_policys_rollout() -> None:
    episode = make_episode(make_trace("user", {"polite": 5.0}), make_trace("solver", {"right": 1.0}))
    result = read_result(episode, "solver")
    assert (result.reward, result.metrics) == (1.0, {})


@pytest.mark.parametrize(
    ("traces", "message"),
    [
        ([("solver", {"right": 1.0})] * 2, "ran the agent solver 2 times in an episode"),
        ([("user", {"right": 1.0})], "ran the agent solver 0 times in an episode"),
        ([("solver", {})], "gives no reward"),
    ],
)
def test_a_response_has_one_reward(traces: list[tuple[str, dict[str, float]]], message: str) -> None:
    with pytest.raises(EnvironmentFailed, match=message):
        read_result(make_episode(*(make_trace(*each) for each in traces)), "solver")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("exact match", "exact_match"), ("_is_right", "is_right"), ("std", "std_value"), ("a" * 70, "a" * 63)],
)
def test_names_of_metrics_are_allowed(name: str, expected: str) -> None:
    assert metric_name(name) == expected


def test_an_infinite_taskset_is_loaded_up_to_the_task() -> None:
    loaded = []

    def tasks() -> Any:
        for index in count():
            loaded.append(index)
            yield SimpleNamespace(key=f"key {index}")

    table = TaskTable(tasks())
    assert table.find({"task_index": 2, "task_key": "key 2"}).key == "key 2"
    assert table.find({"task_index": 0}).key == "key 0"
    assert loaded == [0, 1, 2]


def test_a_row_has_messages_in_text() -> None:
    """A task that its user opens is named, since a row has a prompt."""
    parts = [SimpleNamespace(type="text", text="what "), SimpleNamespace(type="text", text="is one")]
    prompt = [SimpleNamespace(role="user", content=parts)]
    data = SimpleNamespace(prompt=prompt, system_prompt=None, name=None, idx=4)
    row = make_row(SimpleNamespace(data=data, key="k"))
    assert row == {"messages": [{"role": "user", "content": "what is one"}], "task_index": 4, "task_key": "k"}
    data = SimpleNamespace(prompt=None, system_prompt="You sell.", name="refund", idx=0)
    messages = make_row(SimpleNamespace(data=data, key="k"))["messages"]
    assert messages == [{"role": "system", "content": "You sell."}, {"role": "user", "content": "refund"}]

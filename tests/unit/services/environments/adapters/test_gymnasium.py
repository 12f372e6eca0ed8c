"""Environments of the real gymnasium."""

from typing import Any

import pytest

from kubealign.spec.workflows.environments import GymnasiumEnvironment
from kubealign_services.environments.adapters.gymnasium import GymnasiumGame
from kubealign_services.environments.contract import EnvironmentFailed, Observation
from support.environment_packages import needs_package

pytestmark = needs_package("gymnasium", "gymnasium")

WAYS = ["left", "down", "right", "up"]
LAKE: dict[str, Any] = {"render_mode": "ansi", "is_slippery": False}


def lake(**settings: Any) -> GymnasiumGame:
    return GymnasiumGame(GymnasiumEnvironment(id="FrozenLake-v1", actions=WAYS, **settings), LAKE)


def test_a_walk_over_the_lake() -> None:
    game = lake()
    start = game.reset(7, {})
    assert start == Observation("\n[S]FFF\nFHFH\nFFFH\nHFFG\n")
    steps = [game.step(action) for action in ("Down", "I go down", "right, or rather right", "down", "right")]
    assert steps[0].observation == Observation("  (Down)\nSFFF\n[F]HFH\nFFFH\nHFFG\n")
    assert not any(step.done for step in steps)
    last = game.step("RIGHT")
    assert (last.reward, last.done, last.truncated) == (1.0, True, False)
    game.close()


def test_a_turn_that_names_no_action_moves_nothing() -> None:
    game = lake(invalid_action_reward=-0.5)
    game.reset(7, {})
    refused = game.step("downwards")
    assert refused.observation == "That is no action. The actions are: left, down, right, up."
    assert (refused.reward, refused.done, refused.metrics) == (-0.5, False, {"invalid_action": 1.0})
    # The last action that is named counts.
    moved = game.step("not left but down")
    assert isinstance(moved.observation, Observation)
    assert "[F]HFH" in moved.observation.text


def test_numbers_name_actions_and_observations_without_a_rendering() -> None:
    game = GymnasiumGame(GymnasiumEnvironment(id="FrozenLake-v1"), {"is_slippery": False})
    assert game.reset(7, {}) == Observation("0")
    assert game.step("1").observation == Observation("4")
    assert game.step("12").metrics == {"invalid_action": 1.0}


def test_the_time_limit_of_the_environment_truncates() -> None:
    game = GymnasiumGame(
        GymnasiumEnvironment(id="FrozenLake-v1", actions=WAYS), LAKE | {"max_episode_steps": 2}
    )
    game.reset(7, {})
    assert not game.step("left").truncated
    last = game.step("left")
    assert (last.done, last.truncated) == (False, True)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"id": "Pendulum-v1"}, r"Pendulum-v1 has the actions Box.*only environments with discrete actions"),
        ({"id": "FrozenLake-v1", "actions": ["a", "b"]}, "has 4 actions, and gymnasium.actions names 2"),
    ],
)
def test_environments_that_text_cannot_play_are_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvironmentFailed, match=message) as raised:
        GymnasiumGame(GymnasiumEnvironment.model_validate(spec), {})
    assert raised.value.permanent

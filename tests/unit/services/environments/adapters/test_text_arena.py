"""Games of the real textarena."""

import random

import pytest

from kubealign.spec.workflows.environments import TextArenaEnvironment
from kubealign_services.environments.adapters.text_arena import TextArenaGame
from kubealign_services.environments.contract import EnvironmentFailed, Observation
from support.environment_packages import needs_package

pytestmark = needs_package("textarena", "textarena")


def play(game: TextArenaGame, seed: int) -> tuple[list[str], float]:
    """Guess 1, 2 and so on, and return (answers of the game before its end, reward of the end)."""
    game.reset(seed, {})
    answers: list[str] = []
    for guess in range(1, 21):
        result = game.step(f"[{guess}]")
        if result.done:
            return answers, result.reward
        assert isinstance(result.observation, Observation)
        assert result.reward == 0.0
        answers.append(result.observation.text)
    raise AssertionError(f"the game did not end: {answers}")


def test_a_game_shows_its_messages_once_and_rewards_its_end() -> None:
    game = TextArenaGame(TextArenaEnvironment(id="GuessTheNumber-v0"), {"max_turns": 20})
    first = game.reset(3, {})
    assert isinstance(first, Observation)
    assert "between 1 and 20 within 20 turns" in first.text
    answers, reward = play(game, 3)
    assert set(answers) == {"The target number is higher."}
    assert reward == 1.0


def test_seeds_determine_games_whatever_other_episodes_draw() -> None:
    game = TextArenaGame(TextArenaEnvironment(id="GuessTheNumber-v0"), {"max_turns": 20})
    games = [play(game, seed) for seed in range(8)]
    assert len({len(answers) for answers, _ in games}) > 3
    random.seed(99)
    state = random.getstate()
    other = TextArenaGame(TextArenaEnvironment(id="GuessTheNumber-v0"), {"max_turns": 20})
    assert [play(other, seed) for seed in range(8)] == games
    # Nor does a game disturb the generator of the process.
    assert random.getstate() == state


def test_draws_within_a_game_are_those_of_its_seed() -> None:
    """Two games of 2048, which draws a tile after each move, are played in turns and one after the other."""

    def boards(games: list[TextArenaGame]) -> list[list[object]]:
        shown: list[list[object]] = [[] for _ in games]
        for move in ("[up]", "[left]", "[down]", "[right]", "[up]", "[left]"):
            for index, game in enumerate(games):
                # Other code of the process draws too.
                random.random()
                shown[index].append(game.step(move).observation)
        return shown

    def game(seed: int) -> TextArenaGame:
        one = TextArenaGame(TextArenaEnvironment(id="2048-v0"), {})
        one.reset(seed, {})
        return one

    assert boards([game(1), game(2)]) == [*boards([game(1)]), *boards([game(2)])]


def test_an_invalid_move_that_ends_the_game_is_a_metric() -> None:
    game = TextArenaGame(TextArenaEnvironment(id="GuessTheNumber-v0"), {})
    game.reset(3, {})
    assert not game.step("nothing").done
    last = game.step("nothing again")
    assert (last.done, last.metrics) == (True, {"invalid_move": 1.0})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("TicTacToe-v0", "is no game for one player: The number of players has to be 2, received 1"),
        ("GuessNumber-v0", r"registered games; the most similar are .*GuessTheNumber-v0"),
    ],
)
def test_games_that_cannot_be_played_are_refused(name: str, message: str) -> None:
    with pytest.raises(EnvironmentFailed, match=message) as raised:
        TextArenaGame(TextArenaEnvironment(id=name), {})
    assert raised.value.permanent

"""Guess a number from 0 to 9: the game answers each guess by `<` (guess lower), `>` (guess higher) or `=`."""

from typing import Any

from kubealign_services.environments import StepResult

HIGHEST = 9


class GuessTheNumber:
    """One game. The secret is the row's seed, so that all responses to a prompt play for the same number."""

    def __init__(self, guesses: int = 4) -> None:
        self._left = guesses

    def reset(self, seed: int, columns: dict[str, Any]) -> None:
        self._secret = seed % (HIGHEST + 1)

    def step(self, action: str) -> StepResult:
        self._left -= 1
        if not action.isdecimal():
            # Anything but a number ends the game.
            return StepResult(reward=-1.0, done=True, metrics={"won": 0.0})
        guess = int(action)
        is_won = guess == self._secret
        return StepResult(
            "=" if is_won else "<" if guess > self._secret else ">",
            # Each guess costs a little, so that few are better.
            reward=1.0 if is_won else -0.1,
            done=is_won or self._left == 0,
            metrics={"won": float(is_won)},
        )

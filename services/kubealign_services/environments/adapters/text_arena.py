"""Games of textarena for one player (Guertler et al. 2025, "TextArena")."""

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kubealign.spec.workflows.environments import TextArenaEnvironment
from kubealign_services.environments.adapters.packages import import_package, require_name
from kubealign_services.environments.contract import EnvironmentFailed, Observation, StepResult

_PLAYER = 0

# Games draw from the generator of the module random, which the episodes of a process share.
_generator_lock = threading.Lock()


class TextArenaGame:
    """A game made by `textarena.make`.

    An observation is the messages since the last turn. The reward is that of the game's end.
    """

    def __init__(self, spec: TextArenaEnvironment, parameters: Mapping[str, Any]) -> None:
        """Make the game. Raises EnvironmentFailed for an unknown name, or a game of several players."""
        textarena = import_package("textarena", "textarena")
        games = import_package("textarena.envs.registration", "textarena").ENV_REGISTRY
        require_name(spec.id, games, "game")
        self._game = textarena.make(spec.id, **parameters)
        try:
            self.reset(0, {})
        except AssertionError as error:
            raise EnvironmentFailed(f"is no game for one player: {error}", permanent=True) from error

    def reset(self, seed: int, columns: dict[str, Any]) -> Observation:
        self._generator_state = random.Random(seed).getstate()
        with self._own_generator():
            self._game.reset(num_players=1, seed=seed)
        return self._observe()

    def step(self, action: str) -> StepResult:
        with self._own_generator():
            done, _ = self._game.step(action=action)
        if not done:
            return StepResult(self._observe())
        rewards, info = self._game.close()
        invalid = float(bool(info[_PLAYER]["invalid_move"]))
        return StepResult(
            self._observe(), float(rewards[_PLAYER]), done=True, metrics={"invalid_move": invalid}
        )

    def _observe(self) -> Observation:
        """Return the messages to the player since the last call, without its own actions."""
        # Observation wrappers repeat the whole game in each observation; the response has it already.
        messages = self._game.state.get_current_player_observation()
        return Observation("\n".join(text for sender, text, _ in messages if sender != _PLAYER))

    @contextmanager
    def _own_generator(self) -> Iterator[None]:
        """Give the module random the state that this episode left it in."""
        with _generator_lock:
            shared = random.getstate()
            random.setstate(self._generator_state)
            try:
                yield
            finally:
                self._generator_state = random.getstate()
                random.setstate(shared)

"""Tasks of reasoning-gym (Stojanovski et al. 2025, "Reasoning Gym")."""

from collections.abc import Mapping
from typing import Any

from kubealign.spec.workflows.environments import ReasoningGymEnvironment
from kubealign_services.environments.adapters.packages import import_package, require_name
from kubealign_services.environments.contract import Observation, StepResult

_SEEDS = 2**32


class ReasoningGymTask:
    """One question, whose answer the task's `score_answer` scores from 0 to 1.

    The seed of an episode is the seed of the task's data set, whose first entry is the question.
    """

    def __init__(self, spec: ReasoningGymEnvironment, parameters: Mapping[str, Any]) -> None:
        """Check the name and the parameters of the task.

        Raises EnvironmentFailed.
        """
        self._spec, self._parameters = spec, dict(parameters)
        self._package = import_package("reasoning_gym", "reasoning-gym")
        tasks = import_package("reasoning_gym.factory", "reasoning-gym").DATASETS
        require_name(spec.dataset, tasks, "task")
        self._dataset = self._create(0)
        self._entry: dict[str, Any] = {}

    def reset(self, seed: int, columns: dict[str, Any]) -> Observation:
        self._dataset = self._create(seed)
        self._entry = self._dataset[0]
        return Observation(str(self._entry["question"]))

    def step(self, action: str) -> StepResult:
        answer: str | None = action.strip()
        if self._spec.answer_tag is not None:
            answer = self._package.utils.extract_answer(action, tag_name=self._spec.answer_tag)
        score = float(self._dataset.score_answer(answer=answer, entry=self._entry))
        return StepResult(reward=score, done=True, metrics={"answered": float(bool(answer))})

    def _create(self, seed: int) -> Any:
        settings = {**self._parameters, "seed": seed % _SEEDS, "size": 1}
        return self._package.create_dataset(self._spec.dataset, **settings)

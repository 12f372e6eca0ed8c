"""Resolution of model shapes for the models of a job."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kubealign.planning.errors import PlanError
from kubealign.planning.model.shape import ModelShape, parse_model_shape
from kubealign.spec.base import field_alias
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.models import Model

#: Assumed size of a character vocabulary, which depends on the data: more than most texts have.
_CHARACTER_VOCABULARY = 256


class ModelShapes:
    """Shapes of the models of all jobs in one file.

    Args:
        configs: Contents of config.json by model (`policy`, `critic`, `reference`, `teacher`, teacher-NAME, a
            reward's name), or by "" for every other model.
        jobs: Jobs of the file; a model that is another job's result has that job's shape.
    """

    def __init__(self, configs: Mapping[str, Mapping[str, Any]], jobs: Sequence[AlignmentJob]) -> None:
        self._configs = configs
        self._jobs = {job.name: job for job in jobs}

    def shape_of(self, model: Model, name: str, field: str) -> ModelShape:
        """Return the shape of a model.

        Args:
            name: Key in configs.
            field: Path of the model in the job, for the error.

        Raises:
            PlanError: The model's size is unknown.
        """
        if name in self._configs:
            return parse_model_shape(self._configs[name], f"--config {name}")
        if model.config is not None:
            shape = parse_model_shape(model.config.architecture, f"{field}.config.architecture")
            tokens = self._vocabulary_size(model)
            return shape if tokens is None else shape.with_vocabulary(tokens)
        if model.path is not None and (Path(model.path) / "config.json").is_file():
            return parse_model_shape(read_config(Path(model.path) / "config.json"), f"{field}.path")
        if model.job is not None and model.job.name in self._jobs:
            source = self._jobs[model.job.name].spec.policy.model
            return self.shape_of(source, "policy", f"spec.policy.model of {model.job.name}")
        if "" in self._configs:
            return parse_model_shape(self._configs[""], "--config")
        raise PlanError(
            f"{field} is {field_alias(Model, model.member)}, whose config.json is not here: "
            f"give it with --config {name}=FILE, or for all models with --config FILE"
        )

    @staticmethod
    def _vocabulary_size(model: Model) -> int | None:
        """Return the vocabulary size of a tokenizer trained by the job; None: the config states the size."""
        assert model.config is not None
        train = model.config.tokenizer.train
        if train is None:
            return None
        if train.byte_level_bpe is not None:
            return train.byte_level_bpe.vocabulary_size
        stated = model.config.architecture.get("vocab_size")
        return stated if isinstance(stated, int) else _CHARACTER_VOCABULARY


def read_config(path: Path) -> Mapping[str, Any]:
    """Read a config.json. Raises PlanError if the file is missing or invalid."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(f"{path} cannot be read as a config.json: {error}") from error
    if not isinstance(config, dict):
        raise PlanError(f"{path} holds {type(config).__name__}; a config.json holds an object")
    return config

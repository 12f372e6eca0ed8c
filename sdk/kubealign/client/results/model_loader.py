"""Loads the model and tokenizer of a job's result."""

import json
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kubealign.client.errors import NotPossible
from kubealign.spec.sections.data import RESULT_ROWS_FILE

_REWARD_MODEL_SUFFIX = "ForSequenceClassification"


@dataclass(frozen=True)
class Result:
    """Loaded result. `model`: a transformers model, with a score head if the job trained a reward model."""

    path: Path
    model: Any = field(repr=False)
    tokenizer: Any = field(repr=False)


def load_result(path: Path, **arguments: Any) -> Result:
    """Load the model and tokenizer of a result folder; `arguments` are passed to the model's from_pretrained.

    Raises NotPossible for the rows of a data generation job, and if transformers or torch is not
    installed.
    """
    if (path / RESULT_ROWS_FILE).exists():
        raise NotPossible(
            f"{path} holds rows, not a model: read {path / RESULT_ROWS_FILE}, one JSON object a line"
        )
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise NotPossible(f"the result at {path} cannot be loaded here: pip install {' '.join(missing)}")
    transformers: Any = import_module("transformers")
    model_class = (
        transformers.AutoModelForSequenceClassification
        if is_reward_model(path)
        else transformers.AutoModelForCausalLM
    )
    return Result(
        path, model_class.from_pretrained(path, **arguments), transformers.AutoTokenizer.from_pretrained(path)
    )


def is_reward_model(path: Path) -> bool:
    """Return True if the model in a result folder has a score head. Raises NotPossible."""
    return any(name.endswith(_REWARD_MODEL_SUFFIX) for name in _architectures(path))


def _architectures(path: Path) -> list[str]:
    try:
        config = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise NotPossible(f"{path} has no readable model: {error}") from None
    return [str(name) for name in config.get("architectures") or []]

"""A job's result, loaded for use."""

import json
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kubealign.client.errors import NotPossible
from kubealign.spec.data import JOB_ROWS

_REWARD_MODEL = "ForSequenceClassification"


@dataclass(frozen=True)
class Result:
    """`model`: a transformers model, with a score head where the job made a reward model."""

    path: Path
    model: Any = field(repr=False)
    tokenizer: Any = field(repr=False)


def load(path: Path, **arguments: Any) -> Result:
    """The model and tokenizer of a result's folder; `arguments` go to the model's from_pretrained. Raises
    NotPossible for the rows of a job that makes data, and where transformers or torch is not installed."""
    if (path / JOB_ROWS).exists():
        raise NotPossible(f"{path} holds rows, not a model: read {path / JOB_ROWS}, one JSON object a line")
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise NotPossible(f"the result at {path} cannot be loaded here: pip install {' '.join(missing)}")
    kinds: Any = import_module("transformers")
    scores = any(name.endswith(_REWARD_MODEL) for name in _architectures(path))
    auto = kinds.AutoModelForSequenceClassification if scores else kinds.AutoModelForCausalLM
    return Result(path, auto.from_pretrained(path, **arguments), kinds.AutoTokenizer.from_pretrained(path))


def _architectures(path: Path) -> list[str]:
    try:
        held = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise NotPossible(f"{path} holds no model that can be read: {error}") from None
    return [str(name) for name in held.get("architectures") or []]

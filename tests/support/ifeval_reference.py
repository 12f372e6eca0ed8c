"""IFEval's checks as the package lm-eval has them, where it is installed: `pip install --no-deps lm-eval
langdetect immutabledict six`.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import nltk
import punkt
import pytest

#: Packages of the reference that kubealign itself does not need.
NEEDED = ("lm_eval", "langdetect", "immutabledict")

_PACKAGES = ("lm_eval", "lm_eval.tasks", "lm_eval.tasks.ifeval")


def is_installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in NEEDED)


class IfevalReference:
    """Verdicts of the reference on rows."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def verdicts(self, response: str, instruction: str, parameters: dict[str, Any]) -> tuple[bool, bool]:
        """Return whether the response follows the instruction, strictly and loosely."""
        row = SimpleNamespace(instruction_id_list=[instruction], kwargs=[parameters], prompt="")
        strict = self._module.test_instruction_following_strict(row, response)
        loose = self._module.test_instruction_following_loose(row, response)
        return strict.follow_all_instructions, loose.follow_all_instructions

    def sentences(self, text: str) -> list[str]:
        return list(nltk.tokenize.sent_tokenize(text))

    def instructions(self) -> set[str]:
        return set(self._module.instructions_registry.INSTRUCTION_DICT)

    def languages(self) -> set[str]:
        registry = self._module.instructions_registry
        return set(registry.instructions.instructions_util.LANGUAGE_CODES)


@contextmanager
def ifeval_reference(folder: Path) -> Iterator[IfevalReference]:
    """Import the reference without the rest of lm-eval, which needs many packages.

    Args:
        folder: For Punkt's English model, in the form in which NLTK downloads it.
    """
    _write_punkt_model(folder / "tokenizers" / "punkt_tab" / "english")
    spec = importlib.util.find_spec("lm_eval")
    assert spec is not None and spec.submodule_search_locations is not None
    root = Path(next(iter(spec.submodule_search_locations)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nltk.data, "path", [str(folder)])
        patch.setattr("langdetect.DetectorFactory.seed", 0)
        for name, path in zip(_PACKAGES, (root, root / "tasks", root / "tasks" / "ifeval"), strict=True):
            package = ModuleType(name)
            package.__path__ = [str(path)]
            patch.setitem(sys.modules, name, package)
        yield IfevalReference(importlib.import_module("lm_eval.tasks.ifeval.utils"))


def _write_punkt_model(folder: Path) -> None:
    """Write the model of the package punkt, which is a copy of NLTK's, as tables of texts."""
    folder.mkdir(parents=True)
    model = punkt.load_model("english")
    tables = {
        "abbrev_types.txt": sorted(model.abbrev_types),
        "sent_starters.txt": sorted(model.sent_starters),
        "collocations.tab": ["\t".join(pair) for pair in sorted(model.collocations)],
        "ortho_context.tab": [f"{word}\t{flags}" for word, flags in sorted(model.ortho_context.items())],
    }
    for name, lines in tables.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

"""Layout of weights in checkpoints, with transformers 4 and 5."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kubealign_services.data.models import checkpoint_layout
from kubealign_services.data.models.checkpoint_layout import to_checkpoint_layout


def test_transformers_4_keeps_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_layout, "TRANSFORMERS_MAJOR", 4)
    model: Any = SimpleNamespace()
    weights = {"model.norm.weight": torch.ones(2)}
    assert to_checkpoint_layout(model, weights) == weights


def test_renaming_models_of_transformers_4_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_layout, "TRANSFORMERS_MAJOR", 4)
    model: Any = SimpleNamespace(_checkpoint_conversion_mapping={"^language_model": "model.language_model"})
    with pytest.raises(ValueError, match=r"names for its weights than its checkpoint \(\^language_model\)"):
        to_checkpoint_layout(model, {})

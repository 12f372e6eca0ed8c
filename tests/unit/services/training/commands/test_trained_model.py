"""Checks of a trained model's process before anything is loaded."""

from typing import Any

import pytest

from kubealign.spec.sections.training import BaseQuantization, Lora, Nf4Quantization, Trainer
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.training.adapters import quantization as quantization_module
from kubealign_services.training.commands.trained_model import TrainedModelProcess

CONTEXT: Any = None


def test_a_missing_library_fails_the_job_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Trainer(lora=Lora(quantization=BaseQuantization(nf4=Nf4Quantization())))
    TrainedModelProcess(CONTEXT, "critic", spec)
    monkeypatch.setattr(quantization_module, "find_spec", lambda name: None)
    TrainedModelProcess(CONTEXT, "critic", Trainer(lora=Lora()))
    with pytest.raises(
        PermanentFailure, match=r"^spec\.critic\.lora\.quantization\.nf4: bitsandbytes is not"
    ):
        TrainedModelProcess(CONTEXT, "critic", spec)

"""Checks that a checkpoint's adapter is the one that is trained, for all backends."""

import json
from pathlib import Path
from typing import Any

from kubealign.spec.sections.training import Lora
from kubealign_services.training.contract import CorruptCheckpoint


def adapter_identity(lora: Lora | None) -> dict[str, Any] | None:
    """Return the settings that identify an adapter: all but the dropout, which changes no weight."""
    return None if lora is None else lora.model_dump(mode="json", by_alias=True, exclude={"dropout"})


def check_adapter(path: Path, saved: dict[str, Any] | None, expected: dict[str, Any] | None) -> None:
    """Raise CorruptCheckpoint, naming the file, when the two identities (see `adapter_identity`) differ."""
    if saved != expected:
        raise CorruptCheckpoint(f"{path} is of {_describe(saved)}; this job trains {_describe(expected)}")


def _describe(adapter: dict[str, Any] | None) -> str:
    return "all weights" if adapter is None else f"an adapter with lora {json.dumps(adapter)}"

"""Model folder of the scorers that load a frozen model."""

from pathlib import Path

import pytest

from support.tiny_frozen_model import save_tiny_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny frozen model."""
    folder = tmp_path_factory.mktemp("frozen")
    save_tiny_model(folder)
    return folder

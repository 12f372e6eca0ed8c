"""Folders of models that preparation refuses before any process loads them."""

import json
from pathlib import Path

import pytest

from kubealign.spec.sections.models import JobModel, Model
from kubealign_services.data.errors import DataError
from kubealign_services.data.models.model_folders import find_model_folder


def write_folder(folder: Path, model_type: str | None) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": model_type} if model_type else {}))
    (folder / "model.safetensors").touch()
    return folder


@pytest.mark.parametrize("kind", ["bloom", "mamba", "t5", "gpt_oss", "nonsense", None])
def test_a_model_of_an_unsupported_type_is_refused(kind: str | None, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", kind)
    with pytest.raises(DataError) as caught:
        find_model_folder(Model(path=str(folder)), "spec.reference.model", {})
    text = str(caught.value)
    assert text.startswith(f"spec.reference.model.path: {folder}: config.json, model_type: {kind!r} is ")
    assert "supported are afmoe, " in text
    # So is a model that comes from elsewhere: the result of a job, which an earlier version may have made.
    with pytest.raises(DataError, match=r"spec\.policy\.model\.job: .*supported are"):
        find_model_folder(Model(job=JobModel(name="base")), "spec.policy.model", {"base": folder})


def test_a_supported_type_is_accepted(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", "olmo2")
    assert find_model_folder(Model(path=str(folder)), "spec.policy.model", {}) == folder

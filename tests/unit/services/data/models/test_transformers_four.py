"""Model folders in the form of transformers 4."""

import json
from pathlib import Path
from typing import Any

import pytest

from kubealign_services.data.errors import DataError
from kubealign_services.data.models import transformers_four
from kubealign_services.data.models.transformers_four import (
    convert_config,
    convert_tokenizer_config,
    open_readable_policy,
)
from kubealign_services.data.prepared import PreparationReport, PreparedJob, PreparedRows

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
}


def prepared(folder: Path) -> PreparedJob:
    report = PreparationReport.model_construct(context=None)
    rows = PreparedRows(folder / "train.parquet", "prompts")
    return PreparedJob(folder, {"policy": folder, "reference": folder}, report, rows, None)


def write(folder: Path, **documents: Any) -> None:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))


@pytest.fixture
def version_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_four, "TRANSFORMERS_MAJOR", 4)


@pytest.mark.parametrize(
    ("rope", "fields"),
    [
        ({"rope_type": "default", "rope_theta": 5e5}, {"rope_theta": 5e5, "rope_scaling": None}),
        (
            {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
            {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        ),
        (
            {"rope_theta": 1e4, "partial_rotary_factor": 0.25},
            {"rope_theta": 1e4, "partial_rotary_factor": 0.25, "rope_scaling": None},
        ),
    ],
)
def test_rotary_parameters_get_the_names_of_version_4(rope: dict[str, Any], fields: dict[str, Any]) -> None:
    assert convert_config({"hidden_size": 8, "rope_parameters": rope}) == {"hidden_size": 8, **fields}


def test_nested_configs_are_converted_and_others_stay() -> None:
    nested = convert_config({"model_type": "any", "text_config": CONFIG})
    assert nested["text_config"] == {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": None}
    written_by_four = {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": None}
    assert convert_config(written_by_four) == written_by_four


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        (
            {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}},
            "differ by the type of layer",
        ),
        (
            {"rope_type": "longrope", "rope_theta": 1e4},
            "rope_type is 'longrope', not default, linear, dynamic",
        ),
    ],
)
async def test_rotary_parameters_without_a_form_are_refused(
    tmp_path: Path, version_four: None, rope: dict[str, Any], message: str
) -> None:
    write(tmp_path / "model", config={"rope_parameters": rope})
    with pytest.raises(DataError, match=f"spec.policy.model: .*/config.json: rope_parameters.*{message}"):
        async with open_readable_policy(prepared(tmp_path / "model"), tmp_path):
            raise AssertionError("it was opened")


def test_tokenizers_get_the_names_of_version_4() -> None:
    config = {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<a>"], "eos_token": "<e>"}
    assert convert_tokenizer_config(config) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "additional_special_tokens": ["<a>"],
        "eos_token": "<e>",
    }
    named = {"tokenizer_class": "Qwen2Tokenizer", "extra_special_tokens": {"image_token": "<i>"}}
    assert convert_tokenizer_config(named) == named


async def test_the_policy_has_a_folder_of_links_until_the_end(tmp_path: Path, version_four: None) -> None:
    source, files = tmp_path / "model", tmp_path / "files"
    write(source, config=CONFIG, generation_config={"eos_token_id": 1})
    job = prepared(source)
    async with open_readable_policy(job, files) as readable:
        folder = readable.model_folder("policy")
        assert folder.parent == files and readable.model_folder("reference") == source
        assert json.loads((folder / "config.json").read_text())["rope_theta"] == 5e5
        assert (folder / "model.safetensors").read_bytes() == b"weights"
        assert (folder / "generation_config.json").is_symlink()
    assert not list(files.iterdir())
    assert json.loads((source / "config.json").read_text()) == CONFIG


async def test_a_folder_that_version_4_reads_alike_stays(tmp_path: Path, version_four: None) -> None:
    write(tmp_path / "model", config={"model_type": "llama", "rope_theta": 5e5})
    job = prepared(tmp_path / "model")
    async with open_readable_policy(job, tmp_path / "files") as readable:
        assert readable is job


async def test_transformers_5_reads_the_folder_itself(tmp_path: Path) -> None:
    write(tmp_path / "model", config=CONFIG)
    job = prepared(tmp_path / "model")
    async with open_readable_policy(job, tmp_path / "files") as readable:
        assert readable is job

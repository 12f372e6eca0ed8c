"""Folders written from a rank's parameters: transformers loads them bit for bit."""

# mypy: disable-error-code="no-untyped-call"
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from kubealign.spec.sections.training import HeadInit
from kubealign_services.training.contract import Head
from kubealign_services.training.files.hf_heads import HeadPooling
from kubealign_services.training.megatron_backend.weights.conversion import HeadSizes
from kubealign_services.training.megatron_backend.weights.export_hf import export_filter, write_hf_folder
from kubealign_services.training.megatron_backend.weights.head_init import initial_head, read_config
from kubealign_services.training.megatron_backend.weights.load_hf import load_weights
from kubealign_services.training.megatron_backend.weights.rank_slices import gather_tensors
from kubealign_services.training.torch_backend.model.loading import load_model
from support.megatron_models import FAMILIES, config_of, conversions_of, loaded, save_model


def exported(
    source: Path, target: Path, parameters: dict[str, Tensor], heads: HeadSizes, **how: Any
) -> dict[str, Tensor]:
    """Write a folder from one rank's parameters and read its files back."""
    config = read_config(source)
    conversions = conversions_of(config, heads)
    expected = export_filter(heads.scores > 0)
    weights = gather_tensors(conversions, 0, parameters, torch.float32, expected)
    write_hf_folder(target, source, config, conversions, weights, torch.float32, **how)
    return {name: tensor for file in target.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_language_model_round_trips(family: str, tied: bool, tmp_path: Path) -> None:
    config = config_of(family, tie_word_embeddings=tied)
    model = save_model(tmp_path / "source", config)
    (tmp_path / "source/tokenizer.json").write_text("{}")
    (conversion,) = conversions_of(config)
    actual = exported(
        tmp_path / "source", tmp_path / "target", loaded(tmp_path / "source", conversion), HeadSizes()
    )
    stored = load_file(tmp_path / "source/model.safetensors")
    assert actual.keys() == stored.keys()
    assert all(torch.equal(actual[name], stored[name]) for name in stored)
    assert (tmp_path / "target/tokenizer.json").read_text() == "{}"
    again, report = AutoModelForCausalLM.from_pretrained(tmp_path / "target", output_loading_info=True)
    assert type(again) is type(model)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    assert torch.equal(again(tokens).logits, model(tokens).logits)


def test_large_models_are_written_in_several_files(tmp_path: Path) -> None:
    config = config_of("llama")
    model = save_model(tmp_path / "source", config)
    (conversion,) = conversions_of(config)
    parameters = loaded(tmp_path / "source", conversion)
    exported(tmp_path / "source", tmp_path / "target", parameters, HeadSizes(), file_bytes=6000)
    index = json.loads((tmp_path / "target/model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "target").glob("*.safetensors"))
    assert files == sorted(set(index["weight_map"].values()))
    assert len(files) > 3
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in model.state_dict().values())
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "target")
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)


def with_head(folder: Path, head: Head, **how: Any) -> tuple[dict[str, Tensor], HeadSizes]:
    """Load one rank's parameters of a folder's model with a head."""
    config = read_config(folder)
    first = initial_head(folder, config, head, **how)
    (conversion,) = conversions_of(config, first.sizes)
    parameters = {name: torch.full(shape, 9.0) for name, shape in conversion.shapes.items()}
    load_weights(folder, conversion, parameters, first.initialised_parameters)
    if first.score is not None:
        parameters["score.weight"].copy_(first.score)
    return parameters, first.sizes


def test_heads_match_the_torch_backend(tmp_path: Path) -> None:
    save_model(tmp_path / "policy", config_of("qwen2"))
    classifier = AutoModelForSequenceClassification.from_config(config_of("qwen2", num_labels=1))
    classifier.save_pretrained(tmp_path / "reward")
    rated = AutoModelForSequenceClassification.from_config(config_of("qwen2", num_labels=3))
    rated.save_pretrained(tmp_path / "rated")
    weighted = {"LABEL_0": 0.5, "LABEL_2": -2.0}
    cases: list[tuple[str, Head, dict[str, Any]]] = [
        ("policy", Head.VALUE, {}),
        ("policy", Head.SCORE, {"seed": 5, "scores": ("a", "b")}),
        ("reward", Head.SCORE, {}),
        ("reward", Head.VALUE, {"head_init": HeadInit.REWARD_MODEL}),
        ("rated", Head.VALUE, {"head_init": HeadInit.REWARD_MODEL, "attributes": weighted}),
    ]
    for name, head, how in cases:
        parameters, sizes = with_head(tmp_path / name, head, **how)
        theirs = load_model(tmp_path / name, head, **how)
        assert theirs.score is not None
        assert torch.equal(parameters["score.weight"], theirs.score.weight), (name, head)
        assert sizes.vocabulary == (theirs.lm_head is not None)
    with pytest.raises(ValueError, match="a causal language model is needed"):
        with_head(tmp_path / "reward", Head.LANGUAGE_MODEL)
    with pytest.raises(ValueError, match="headInit RewardModel needs a reward model"):
        with_head(tmp_path / "policy", Head.VALUE, head_init=HeadInit.REWARD_MODEL)
    with pytest.raises(ValueError, match=r"with the scores LABEL_0, LABEL_1, LABEL_2; wanted are value"):
        with_head(tmp_path / "rated", Head.VALUE, head_init=HeadInit.REWARD_MODEL)
    with pytest.raises(ValueError, match=r"with the scores LABEL_0; wanted are a, b"):
        with_head(tmp_path / "reward", Head.SCORE, scores=("a", "b"))
    with pytest.raises(ValueError, match=r"has no config\.json"):
        with_head(tmp_path, Head.VALUE)


def test_a_model_with_scores_becomes_a_classifier(tmp_path: Path) -> None:
    save_model(tmp_path / "source", config_of("mixtral"))
    parameters, sizes = with_head(tmp_path / "source", Head.SCORE, seed=1, scores=("kind", "true"))
    actual = exported(
        tmp_path / "source",
        tmp_path / "target",
        parameters,
        sizes,
        pooling=HeadPooling("mean"),
        scores=("kind", "true"),
    )
    assert "lm_head.weight" not in actual
    again, report = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "target", output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert torch.equal(again.score.weight, parameters["score.weight"])
    assert again.config.id2label == {0: "kind", 1: "true"}
    assert again.config.kubealign_pooling == "mean"

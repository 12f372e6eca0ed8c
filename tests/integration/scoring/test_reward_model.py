"""A reward model from its folder, compared with transformers' sequence classification."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

from kubealign.spec.sections.precision import Precision
from kubealign_services.batch.packed import pack
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.scoring.reward_models import build_reward
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("pooling", [None, "LastToken", "ResponseSum"])
@pytest.mark.parametrize("weights", [(1.0,), (0.5, -2.0, 1.0)])
def test_scores_are_those_of_transformers(
    tmp_path: Path, pooling: str | None, weights: tuple[float, ...]
) -> None:
    names = [f"score {index}" for index in range(len(weights))]
    tokenizer = train_character_tokenizer(["0123456789+="])
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=0,
    )
    config.num_labels = len(weights)
    config.id2label = dict(enumerate(names))
    if pooling is not None:
        config.kubealign_pooling = pooling
    torch.manual_seed(1)
    model = LlamaForSequenceClassification(config).eval()  # type: ignore[no-untyped-call]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    sequences = [tokenizer(text)["input_ids"] + [1] for text in ("1+1=2", "12+30=42", "7+7=1")]
    prompts = [4, 6, 4]
    batch = pack(sequences, ["a", "b", "c"])
    batch.token_columns["loss_mask"] = torch.tensor(
        [
            int(position >= prompt)
            for ids, prompt in zip(sequences, prompts, strict=True)
            for position in range(len(ids))
        ],
        dtype=torch.uint8,
    )
    loaded = FrozenTorchModel.load(tmp_path, Head.SCORE, Precision.FLOAT32, microbatch_tokens=12)
    reward = build_reward(loaded, dict(zip(names, weights, strict=True)))
    scored = reward.score_details(batch)
    expected = []
    with torch.no_grad():
        for ids, prompt in zip(sequences, prompts, strict=True):
            hidden = model.model(torch.tensor([ids])).last_hidden_state[0]
            heads = model.score(hidden)
            expected.append(heads[prompt:].sum(0) if pooling == "ResponseSum" else heads[-1])
    expected_scores = torch.stack(expected)
    torch.testing.assert_close(scored.rewards, expected_scores @ torch.tensor(weights), atol=1e-5, rtol=1e-5)
    assert list(scored.attributes) == (names if len(names) > 1 else [])
    for index, column in enumerate(scored.attributes.values()):
        torch.testing.assert_close(column, expected_scores[:, index], atol=1e-5, rtol=1e-5)

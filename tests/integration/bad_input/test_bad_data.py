"""Unusable data, tokenizers and models are reported before training, with the field and the cause."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from support.running import RunningJobs
from support.tiny_jobs import ARCHITECTURE, online_job, write_jobs

pytestmark = pytest.mark.timeout(180)

RLOO = {"rloo": {"promptsPerStep": 4, "samplesPerPrompt": 2}}


def job(folder: Path, **spec: Any) -> dict[str, Any]:
    return online_job(folder, "bad", RLOO, **spec)


def write_model(folder: Path, embeddings: int, padding_side: str = "right") -> Path:
    """Write a Llama whose tokenizer has ten tokens and no pad token."""
    vocabulary = {token: index for index, token in enumerate(["<eos>", "<unk>", *"abcdefgh"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>", padding_side=padding_side
    )
    sizes = {name: value for name, value in ARCHITECTURE.items() if name != "model_type"}
    config = LlamaConfig(vocab_size=embeddings, bos_token_id=None, eos_token_id=0, **sizes)
    path = folder / f"model-{padding_side}"
    LlamaForCausalLM(config).save_pretrained(path)
    fast.save_pretrained(path)
    return path


def prompts(folder: Path, text: str) -> dict[str, Any]:
    path = folder / "rows.jsonl"
    path.write_text(text)
    return {"prompts": {"source": {"path": str(path)}}}


def test_a_column_that_is_not_there(tmp_path: Path, failed) -> None:
    data = prompts(tmp_path, '{"questions": "ab"}\n')
    data["prompts"]["format"] = {"text": {"prompt": "question"}}
    output = failed(job(tmp_path, data=data))
    assert "spec.data.prompts.format.text.prompt: " in output
    assert f"{tmp_path / 'rows.jsonl'} has no column 'question'; it has 'questions'" in output
    assert "did you mean 'questions'?" in output


def test_no_rows(tmp_path: Path, failed) -> None:
    output = failed(job(tmp_path, data=prompts(tmp_path, "")))
    assert f"spec.data.prompts.source: {tmp_path / 'rows.jsonl'} has no rows" in output


def test_every_prompt_is_longer_than_the_context_has_room_for(tmp_path: Path, failed) -> None:
    # 60 of the 64 context tokens are reserved for the response: a prompt may have 4, and these have 8.
    rows = "".join(json.dumps({"prompt": letter * 8}) + "\n" for letter in "abc")
    rollout = {"sampling": {"maxTokens": 60}}
    output = failed(job(tmp_path, data=prompts(tmp_path, rows), rollout=rollout))
    assert "all 3 rows were dropped" in output
    assert "4 in a prompt, 64 with its response" in output


def test_a_vocabulary_that_does_not_fit_the_tokenizer(tmp_path: Path, failed) -> None:
    output = failed(job(tmp_path, policy={"model": {"path": str(write_model(tmp_path, embeddings=6))}}))
    assert "spec.policy.model: the tokenizer has ids up to 9, the model's vocabulary has 6 entries" in output


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_tokenizer_without_a_pad_token_works(tmp_path: Path, side: str) -> None:
    """Check that either padding side works, since no batch is padded, and that the result keeps the side."""
    model = write_model(tmp_path, embeddings=10, padding_side=side)
    bad = job(tmp_path, policy={"model": {"path": str(model)}}, maxSteps=2)
    with RunningJobs(write_jobs(tmp_path, bad), tmp_path / "runs") as run:
        assert run.end(120) == 0, run.output
        log = (run.folder("bad") / "logs" / "prepare.log").read_text()
        assert "the tokenizer has no pad token: its end-of-sequence token is used" in log
        tokenizer = AutoTokenizer.from_pretrained(run.folder("bad") / "result")
    assert (tokenizer.pad_token, tokenizer.padding_side) == ("<eos>", side)
    assert tokenizer("hag")["input_ids"] == [9, 2, 8]

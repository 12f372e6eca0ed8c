"""Scores of reward models whose vocabulary is not the policy's, compared with transformers' own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from kubealign.spec.job import AlignmentJob
from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import pack
from kubealign_services.data.preparation import prepare
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.data.tokenization.tokenizers import train_bpe_tokenizer
from kubealign_services.roles.driver.rollouts.work_items import encode_scoring_context
from kubealign_services.roles.reward.model_scorer import ModelScorer, load_model_scorer
from support.chat_templates import FAMILIES
from support.preparing import job, rows
from support.scorer_context import scorer_context, single_rank
from support.tiny_rewards import classifier_folder, policy_folder

pytestmark = pytest.mark.timeout(120)

ALPHABET = "User:\nAssistant: what is one and two, of course?日本"
QUESTIONS = ["what is one?", "and two?", "one and one and 日?"]
ANSWERS = ["one", "two, of course", "日本"]
FAMILY = FAMILIES["qwen25"]


def rollouts(prepared: list[PreparedRow], answers: list[str]) -> list[rollout_pb2.Rollout]:
    """Return a rollout of each row, as rollout workers send it."""
    messages = []
    for index, (row, answer) in enumerate(zip(prepared, answers, strict=True)):
        batch = pack([[*row.prompt_tokens, 1]], [f"0/{index}#0"])
        batch.token_columns["loss_mask"] = torch.tensor([0] * len(row.prompt_tokens) + [1], dtype=torch.uint8)
        messages.append(
            rollout_pb2.Rollout(
                group_id=f"0/{index}",
                sequence=encode(batch),
                response=answer,
                purpose="train",
                finish_reason=rollout_pb2.FINISH_REASON_STOP,
                columns=encode_scoring_context(row.prompt_text, row.columns),
            )
        )
    return messages


def spec(tmp_path: Path, reward: dict[str, Any], is_chat: bool) -> dict[str, Any]:
    lines = [
        {"messages": [{"role": "user", "content": question}]} if is_chat else {"prompt": question}
        for question in QUESTIONS
    ]
    return {
        "algorithm": {"grpo": {}},
        "policy": {"model": {"path": str(policy_folder(tmp_path / "policy", ALPHABET))}},
        "data": {"prompts": rows(tmp_path, lines) | {"format": {"chat": {}} if is_chat else {"text": {}}}},
        "rewards": [{"name": "rm"} | reward],
        "rollout": {"sampling": {"maxTokens": 16}},
    }


def transformers_scores(folder: Path, is_chat: bool) -> list[float]:
    """Return the scores as a model card computes them: text to ids to logits."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    scores = []
    for question, answer in zip(QUESTIONS, ANSWERS, strict=True):
        if is_chat:
            turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            ids = tokenizer(tokenizer.apply_chat_template(turns, tokenize=False))["input_ids"]
        else:
            ids = tokenizer(question + answer + tokenizer.eos_token)["input_ids"]
        with torch.no_grad():
            scores.append(float(model(torch.tensor([ids])).logits[0, 0]))
    return scores


def reward_scorer(given: AlignmentJob, run_dir: Path) -> ModelScorer:
    context = scorer_context("reward-rm-0", given, run_dir)
    return load_model_scorer(context, given.spec.rewards[0], single_rank(context))


@pytest.mark.parametrize("is_chat", [True, False])
@pytest.mark.parametrize("padding", ["<|endoftext|>", "<|im_end|>"])
async def test_scores_are_those_of_transformers(tmp_path: Path, is_chat: bool, padding: str) -> None:
    """Check a padding token of its own, and one that also ends the text: transformers skips it."""
    tokenizer = FAMILY.tokenizer()
    tokenizer.add_special_tokens({"pad_token": padding})
    sizes = {"max_position_embeddings": 256, "pad_token_id": tokenizer.pad_token_id}
    folder = classifier_folder(tmp_path / "rm", tokenizer, seed=5, **sizes)
    given = job(spec(tmp_path, {"model": {"path": str(folder)}}, is_chat))
    prepared = prepare(given, tmp_path / "run", {})
    assert prepared.report.text_rewards == ["reward-rm"] and prepared.report.context == 64
    scorer = reward_scorer(given, tmp_path / "run")
    scores = await scorer(rollouts(list(prepared.train), ANSWERS))
    assert [score.error for score in scores] == [""] * 3
    assert [score.reward for score in scores] == pytest.approx(transformers_scores(folder, is_chat), abs=1e-5)


async def test_members_of_an_ensemble_read_their_own_tokens(tmp_path: Path) -> None:
    """Check an ensemble of a model with the policy's tokens and one with its own."""
    same = policy_folder(tmp_path / "same", ALPHABET)
    folders = [
        classifier_folder(same, AutoTokenizer.from_pretrained(same), seed=7),
        classifier_folder(tmp_path / "other", train_bpe_tokenizer(QUESTIONS * 9, 270), seed=8),
    ]
    scores: dict[str, list[float]] = {}
    for name, models in {"both": folders, "same": folders[:1], "other": folders[1:]}.items():
        places = [{"path": str(folder)} for folder in models]
        reward = {"ensemble": {"models": places}} if name == "both" else {"model": places[0]}
        given = job(spec(tmp_path, reward, is_chat=False))
        prepared = prepare(given, tmp_path / name, {})
        assert (
            prepared.report.text_rewards
            == {"both": ["reward-rm.1"], "same": [], "other": ["reward-rm"]}[name]
        )
        scorer = reward_scorer(given, tmp_path / name)
        scores[name] = [score.reward for score in await scorer(rollouts(list(prepared.train), ANSWERS))]
    means = [(same + other) / 2 for same, other in zip(scores["same"], scores["other"], strict=True)]
    assert scores["both"] == pytest.approx(means, abs=1e-5)
    assert scores["other"] == pytest.approx(transformers_scores(folders[1], is_chat=False), abs=1e-5)


async def test_a_sample_that_is_too_long_does_not_fail_the_others(tmp_path: Path) -> None:
    folder = classifier_folder(tmp_path / "rm", train_bpe_tokenizer(["ab"], 258), max_position_embeddings=30)
    given = job(spec(tmp_path, {"model": {"path": str(folder)}}, is_chat=False))
    prepared = prepare(given, tmp_path / "run", {})
    scorer = reward_scorer(given, tmp_path / "run")
    scores = await scorer(rollouts(list(prepared.train), [*ANSWERS[:1], "x" * 40, *ANSWERS[2:]]))
    assert [bool(score.error) for score in scores] == [False, True, False]
    assert scores[1].error.startswith("reward rm: sample 0/1#0 has 49 tokens of the reward model's tokenizer")
    assert not scores[1].permanent and not scores[1].HasField("reward")
    assert scores[0].reward == pytest.approx(transformers_scores(folder, is_chat=False)[0], abs=1e-5)


async def test_the_same_vocabulary_needs_no_text(tmp_path: Path) -> None:
    """Check that tokens are scored as they are: a rollout without row and text gets the score of its ids."""
    same = policy_folder(tmp_path / "same", ALPHABET)
    folder = classifier_folder(same, AutoTokenizer.from_pretrained(same), seed=7)
    given = job(spec(tmp_path, {"model": {"path": str(folder)}}, is_chat=True))
    prepared = prepare(given, tmp_path / "run", {})
    assert prepared.report.text_rewards == []
    scorer = reward_scorer(given, tmp_path / "run")
    (row,) = rollouts(list(prepared.train)[:1], ["-"])
    row.columns = json.dumps({}).encode()
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = model(torch.tensor([[*prepared.train[0].prompt_tokens, 1]])).logits[0, 0]
    assert [score.reward for score in await scorer([row])] == pytest.approx([float(expected)], abs=1e-5)

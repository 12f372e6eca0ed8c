"""Teacher candidates from the whole distribution."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from kubealign.spec.algorithms import TeacherDistribution
from kubealign.spec.sections.precision import Precision
from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import decode_columns, encode
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.data.teacher_prompts import TeacherPrompts
from kubealign_services.roles.teacher.scorer import TeacherScorer
from kubealign_services.scoring.frozen_scorer import NonFiniteScores
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel
from support.scorer_context import scorer_context
from support.tiny_frozen_model import VOCABULARY

SEQUENCES = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10]]


def scorer(model: FrozenTorchModel, candidates: int, temperature: float, vocabulary: int) -> TeacherScorer:
    distribution = TeacherDistribution(candidates=candidates, temperature=temperature)
    return TeacherScorer(scorer_context("teacher-0"), model, distribution, vocabulary)


def one(tokens: list[int]) -> Batch:
    """Return a batch with two prompt tokens, or one if the sequence has only two tokens."""
    batch = pack([tokens], ["0/0"])
    prompt = 2 if len(tokens) > 2 else 1
    batch.token_columns["loss_mask"] = (batch.positions >= prompt).to(torch.uint8)
    return batch


@pytest.mark.parametrize(("vocabulary", "candidates"), [(VOCABULARY, 4), (VOCABULARY, 99), (20, 4), (20, 20)])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
async def test_candidates_are_the_most_likely_of_the_whole_distribution(
    vocabulary: int, candidates: int, temperature: float, model_folder: Path
) -> None:
    model = FrozenTorchModel.load(model_folder, Head.LANGUAGE_MODEL, Precision.FLOAT32, microbatch_tokens=6)
    plain = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    rollouts = [
        rollout_pb2.Rollout(group_id=str(index), sequence=encode(one(tokens)))
        for index, tokens in enumerate(SEQUENCES)
    ]
    scores = await scorer(model, candidates, temperature, vocabulary)(rollouts)
    assert [score.group_id for score in scores] == ["0", "1", "2"]
    assert {(score.source, score.worker) for score in scores} == {("teacher", "teacher-0")}
    for score, tokens in zip(scores, SEQUENCES, strict=True):
        columns = decode_columns(score.candidates, score.candidates_digest)
        with torch.no_grad():
            logits = plain(torch.tensor([tokens])).logits[0, :, :vocabulary] / temperature
        prompt = 2 if len(tokens) > 2 else 1
        # A token is predicted at the previous position; vocabulary padding is no token.
        all_logprobs = logits[prompt - 1 : -1].log_softmax(-1)
        expected, which = all_logprobs.topk(min(candidates, vocabulary), -1)
        assert columns["tokens"].dtype == torch.int32
        torch.testing.assert_close(columns["logprobs"], expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(
            all_logprobs.gather(-1, columns["tokens"].long()), expected, atol=1e-5, rtol=0
        )
        assert columns["tokens"].shape == which.shape


async def test_a_teacher_with_nan_fails_permanently(model_folder: Path) -> None:
    model = FrozenTorchModel.load(model_folder, Head.LANGUAGE_MODEL, Precision.FLOAT32, 64)
    head = model._model.lm_head
    assert head is not None
    with torch.no_grad():
        head.weight[3] = torch.nan
    asked = scorer(model, 4, 1.0, VOCABULARY)
    with pytest.raises(NonFiniteScores, match="not finite"):
        asked.compute_columns(one(SEQUENCES[0]))
    (score,) = await asked([rollout_pb2.Rollout(sequence=encode(one(SEQUENCES[0])))])
    assert score.permanent and "not finite" in score.error


async def test_candidates_follow_the_prompts_of_the_teacher(model_folder: Path) -> None:
    model = FrozenTorchModel.load(model_folder, Head.LANGUAGE_MODEL, Precision.FLOAT32, microbatch_tokens=6)
    plain = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    rows = [PreparedRow(0, [1, 2], "", teacher_prompt_tokens=[9, 8, 7, 2])]
    distribution = TeacherDistribution(candidates=4, temperature=2.0)
    hinted = TeacherScorer(scorer_context("teacher-0"), model, distribution, VOCABULARY, TeacherPrompts(rows))
    (score,) = await hinted([rollout_pb2.Rollout(group_id="0/0", sequence=encode(one(SEQUENCES[0])))])
    columns = decode_columns(score.candidates, score.candidates_digest)
    with torch.no_grad():
        logits = plain(torch.tensor([[9, 8, 7, 2, 3, 4, 5]])).logits[0, 3:-1] / 2.0
    expected = logits.log_softmax(-1)
    torch.testing.assert_close(columns["logprobs"], expected.topk(4, -1).values, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        expected.gather(-1, columns["tokens"].long()), expected.topk(4, -1).values, atol=1e-5, rtol=0
    )

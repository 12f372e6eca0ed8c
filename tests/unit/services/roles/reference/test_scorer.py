"""Reference log-probabilities of rollouts, each at its own temperature, compared with plain torch."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from kubealign.spec.sections.precision import Precision
from kubealign.v1 import rollout_pb2, training_pb2
from kubealign_services.batch.codec import decode_columns, encode
from kubealign_services.batch.packed import Batch, concatenate, pack
from kubealign_services.batch.temperatures import set_temperatures
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.data.teacher_prompts import TeacherPrompts
from kubealign_services.roles.reference.scorer import ReferenceScorer
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel
from support.scorer_context import scorer_context

SEQUENCES = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10], [1, 2, 3, 9]]


@pytest.fixture(scope="module")
def model(model_folder: Path) -> FrozenTorchModel:
    # Microbatches of up to 8 tokens, so that one of them holds sequences of different temperatures.
    return FrozenTorchModel.load(model_folder, Head.LANGUAGE_MODEL, Precision.FLOAT32, microbatch_tokens=8)


@pytest.fixture(scope="module")
def scorer(model: FrozenTorchModel) -> ReferenceScorer:
    return ReferenceScorer(scorer_context("reference-0"), model, default_temperature=0.7)


def sequence(tokens: list[int], name: str = "0/0") -> Batch:
    """Return a sequence whose first token is its prompt."""
    batch = pack([tokens], [name])
    batch.token_columns["loss_mask"] = (batch.positions >= 1).to(torch.uint8)
    return batch


def by_torch(model_folder: Path, tokens: list[int], temperature: float) -> Tensor:
    """Return the log-probability of each token, 0 at the first."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    with torch.no_grad():
        log_p = torch.log_softmax(model(torch.tensor([tokens])).logits[0] / temperature, -1)
    return torch.tensor([0.0, *(float(log_p[i - 1, tokens[i]]) for i in range(1, len(tokens)))])


@pytest.mark.parametrize(
    "temperatures", [[0.5, 1.3], [0.5, 0.5], [1.0, 0.25, 2.0, 0.5], [None, 1.3, None, 0.5], [None, None]]
)
async def test_each_rollout_is_scored_at_its_own_temperature(
    temperatures: list[float | None], scorer: ReferenceScorer, model_folder: Path
) -> None:
    rollouts = [
        rollout_pb2.Rollout(group_id=str(index), sequence=encode(sequence(tokens)), temperature=temperature)
        for index, (tokens, temperature) in enumerate(zip(SEQUENCES, temperatures, strict=False))
    ]
    scores = await scorer(rollouts)
    assert [score.group_id for score in scores] == [rollout.group_id for rollout in rollouts]
    assert {(score.source, score.worker) for score in scores} == {("reference", "reference-0")}
    assert [score.digest for score in scores] == [rollout.sequence.digest for rollout in rollouts]
    assert all(score.seconds > 0 for score in scores)
    for score, tokens, temperature in zip(scores, SEQUENCES, temperatures, strict=False):
        actual = torch.from_numpy(np.frombuffer(score.logprobs, "<f4").copy())
        # A rollout of an earlier version, which states no temperature, has the default, 0.7.
        expected = by_torch(model_folder, tokens, 0.7 if temperature is None else temperature)
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


async def test_a_direct_call_is_answered_at_the_temperatures_of_its_batch(
    scorer: ReferenceScorer, model_folder: Path
) -> None:
    batch = concatenate([sequence(tokens) for tokens in SEQUENCES[:2]])
    set_temperatures(batch, [0.5, 1.3])
    reply = await scorer.forward(training_pb2.ForwardRequest(batch=encode(batch)))
    columns = decode_columns(reply.columns, reply.digest)
    assert list(columns) == ["token.logprobs"]
    expected = torch.cat(
        [by_torch(model_folder, SEQUENCES[0], 0.5), by_torch(model_folder, SEQUENCES[1], 1.3)]
    )
    torch.testing.assert_close(columns["token.logprobs"], expected, atol=1e-5, rtol=0)


async def test_responses_are_scored_after_the_prompts_of_the_teacher(
    model: FrozenTorchModel, model_folder: Path
) -> None:
    """The log-probabilities are those of plain torch after the hinted prompt, at the response's tokens."""
    prompts = {0: [7, 7, 1], 1: [2]}
    scorer = teacher(model, {0: [1], 1: [6]}, prompts)
    cases = [(0, SEQUENCES[0], 0.5), (1, SEQUENCES[1], 1.3), (0, SEQUENCES[3], 1.0)]
    rollouts = [
        rollout_pb2.Rollout(
            group_id=f"3/{row}",
            sequence=encode(sequence(tokens, f"3/{row}#1")),
            temperature=temperature,
        )
        for row, tokens, temperature in cases
    ]
    for score, (row, tokens, temperature) in zip(await scorer(rollouts), cases, strict=True):
        hinted = prompts[row] + tokens[1:]
        expected = by_torch(model_folder, hinted, temperature)[len(prompts[row]) :]
        actual = torch.from_numpy(np.frombuffer(score.logprobs, "<f4").copy())
        assert actual[0] == 0
        torch.testing.assert_close(actual[1:], expected, atol=1e-5, rtol=0)


async def test_a_sample_of_another_prompt_is_refused_for_good(model: FrozenTorchModel) -> None:
    scorer = teacher(model, {0: [5]}, {0: [7, 5]})
    sample = encode(sequence([1, 2], "0/0#0"))
    (score,) = await scorer([rollout_pb2.Rollout(group_id="0/0", sequence=sample)])
    assert score.permanent
    assert score.error.startswith("0/0#0 does not begin with the 1 tokens of its row's prompt")


def teacher(
    model: FrozenTorchModel, prompts: dict[int, list[int]], hinted: dict[int, list[int]]
) -> ReferenceScorer:
    """Return a scorer of rows with these prompts and hinted prompts."""
    rows = [PreparedRow(row, prompts[row], "", teacher_prompt_tokens=hinted[row]) for row in prompts]
    return ReferenceScorer(scorer_context("reference-0"), model, 0.7, TeacherPrompts(rows))


async def test_all_sequences_of_an_episode_are_scored_in_one_message(
    scorer: ReferenceScorer, model_folder: Path
) -> None:
    """Each sequence is scored by itself, between rollouts of one sequence."""
    episode = concatenate([sequence(SEQUENCES[1], "1/0"), sequence(SEQUENCES[2], "1/1")])
    episode.sequence_columns["truncated"] = torch.tensor([0, 1], dtype=torch.uint8)
    batches = [sequence(SEQUENCES[0]), episode, sequence(SEQUENCES[3])]
    rollouts = [
        rollout_pb2.Rollout(group_id=str(index), sequence=encode(batch), temperature=temperature)
        for index, (batch, temperature) in enumerate(zip(batches, [0.5, 1.3, 0.8], strict=True))
    ]
    scores = [
        torch.from_numpy(np.frombuffer(score.logprobs, "<f4").copy()) for score in await scorer(rollouts)
    ]
    expected = [
        by_torch(model_folder, SEQUENCES[0], 0.5),
        torch.cat([by_torch(model_folder, SEQUENCES[index], 1.3) for index in (1, 2)]),
        by_torch(model_folder, SEQUENCES[3], 0.8),
    ]
    for actual, reference in zip(scores, expected, strict=True):
        torch.testing.assert_close(actual, reference, atol=1e-5, rtol=0)

"""Job with GRPO whose process reward model scores the steps of responses: recorded rewards are those of
transformers.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from kubealign_services.data.prepared import load_prepared
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from support.batches import slow_spans
from support.recorded_batches import recorded_batches
from support.running import RunningJobs
from support.tiny_jobs import online_job, write_jobs
from support.tiny_rewards import classifier_folder, policy_folder

pytestmark = pytest.mark.timeout(240)

STEPS = 2
ALPHABET = "abcdefgh"
#: Separator: a letter of the alphabet, which an untrained policy samples often.
SEPARATOR = "c"


def last_tokens(pieces: Sequence[str]) -> list[int]:
    """Return the index of each step's last token, by a loop over the texts of the tokens."""
    ends: list[int] = []
    step = ""
    for index, piece in enumerate(pieces):
        if piece != SEPARATOR:
            step += piece
        if step and (piece == SEPARATOR or index == len(pieces) - 1):
            ends.append(index)
        elif piece == SEPARATOR and ends:
            ends[-1] = index
        if piece == SEPARATOR:
            step = ""
    return ends


def test_rewards_are_the_probabilities_of_right_steps(tmp_path: Path) -> None:
    """Run two jobs: one credits each step, the other the response with the lowest score of its steps."""
    policy = policy_folder(tmp_path / "policy", ALPHABET)
    tokenizer = train_character_tokenizer([ALPHABET])
    model = classifier_folder(tmp_path / "prm", tokenizer, seed=3, pooling="Steps", step_separator=SEPARATOR)

    def given(name: str, aggregate: str, credit: str) -> dict[str, Any]:
        steps = {"separator": SEPARATOR, "aggregate": aggregate}
        return online_job(
            tmp_path,
            name,
            {"grpo": {"promptsPerStep": 4, "samplesPerPrompt": 4, "credit": credit}},
            maxSteps=STEPS,
            policy={"model": {"path": str(policy)}},
            rewards=[{"name": "prm", "model": {"path": str(model)}, "steps": steps}],
            rollout={"engine": {"torch": {"maxSequences": 64}}, "sampling": {"maxTokens": 16}},
            checkpoint={"everySteps": 2, "recordBatches": True},
        )

    jobs = write_jobs(tmp_path, given("steps", "Sum", "Steps"), given("lowest", "Minimum", "Response"))
    with RunningJobs(jobs, tmp_path / "runs", "--no-dashboard") as run:
        assert run.end(200) == 0, run.output[-4000:]
        folders = {name: run.folder(name) for name in ("steps", "lowest")}
        shown = run.metrics("lowest")[-1]
    scorer = AutoModelForSequenceClassification.from_pretrained(model).eval()
    tokenizer = load_prepared(folders["steps"]).tokenizer
    several = 0
    for name, folder in folders.items():
        for batch in recorded_batches(folder, STEPS):
            expected = [0.0] * len(batch.tokens)
            marks = [0] * len(batch.tokens)
            lowest = []
            for start, span in zip(batch.cu_seqlens.tolist(), slow_spans(batch), strict=False):
                tokens = batch.tokens[start : span[-1] + 1]
                with torch.no_grad():
                    hidden = scorer.model(tokens[None].long()).last_hidden_state[0]
                    scores = torch.sigmoid(scorer.score(hidden)[:, 0]).tolist()
                pieces = [tokenizer.decode([token]) for token in batch.tokens[span].tolist()]
                ends = last_tokens([piece for piece in pieces if piece != tokenizer.eos_token])
                # The last step has the rest of the response, the end token included.
                where = [span[end] for end in ends[:-1]] + ([span[-1]] if ends else [])
                for token in where:
                    expected[token], marks[token] = scores[token - start], 1
                lowest.append(min((scores[token - start] for token in where), default=0.0))
                several += len(where) > 1
            if name == "steps":
                assert batch.token("turn_rewards").tolist() == pytest.approx(expected, abs=1e-5)
                assert batch.token("turn_ends").tolist() == marks
            else:
                assert "turn_rewards" not in batch.token_columns
                assert batch.sequence("rewards").tolist() == pytest.approx(lowest, abs=1e-5)
    assert several > STEPS * 16, "no response has several steps"
    assert 0 < shown["reward/prm/lowest_step"] < 1 < shown["reward/prm/steps"]
    assert shown["reward/prm/mean"] == pytest.approx(sum(lowest) / len(lowest), abs=1e-5)

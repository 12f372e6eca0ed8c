"""A policy trained to criticise produces data that follow a principle better than its own responses.

Everything runs in one process; the data and the prompts are those of the example.
"""

import importlib.util
import random
from pathlib import Path
from statistics import fmean
from types import ModuleType

import pytest

from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from support.making_in_process import Weights, generate_job, made
from support.rounds_in_process import Policy

pytestmark = pytest.mark.timeout(120)

EXAMPLE = Path(__file__).parents[2] / "examples" / "constitutional" / "make_data.py"
SIZES = {"hidden_size": 64, "intermediate_size": 176, "num_key_value_heads": 4, "initializer_range": 0.1}
TAUGHT, ASKED = 70, 40


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("constitutional_data", EXAMPLE)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.full
async def test_revised_responses_and_preferences_are_truer_to_the_principle(tmp_path: Path) -> None:
    data, draw = example(), random.Random(1)
    words = [first + second for first in data.LETTERS for second in data.LETTERS]
    draw.shuffle(words)
    taught = [row for word in words[:TAUGHT] for row in data.taught(word, draw)]
    draw.shuffle(taught)
    prompts = [f"{word}?" for word in words[TAUGHT : TAUGHT + ASKED]]
    tokenizer = train_character_tokenizer([row["prompt"] + row["response"] for row in taught] + prompts)
    policy = Policy(tmp_path, tokenizer, learning_rate=4e-3, architecture=SIZES)
    policy.imitate([(row["prompt"], row["response"]) for row in taught], steps=110, rows_per_step=64)
    weights: Weights = [(name, tensor.clone()) for name, tensor in policy.backend.snapshot()]
    sampling = {"sampling": {"maxTokens": 5}}

    revise = {"principles": [data.PRINCIPLE], "critique": data.CRITIQUE, "revision": data.REVISION}
    job = generate_job({"samplesPerPrompt": 4, "revise": revise}, rollout=sampling)
    rows = await made(tmp_path / "revised", job, policy.folder, tokenizer, weights, prompts)
    assert len(rows) == 4 * ASKED
    before = fmean("!" in row["first_response"] for row in rows)
    after = fmean("!" in row["response"] for row in rows)
    assert before > 0.3 and after < 0.1, (before, after)

    compare = {"principles": [data.PRINCIPLE], "prompt": data.COMPARISON, "answers": ["A", "B"]}
    job = generate_job({"samplesPerPrompt": 4, "compare": compare}, rollout=sampling)
    rows = await made(tmp_path / "compared", job, policy.folder, tokenizer, weights, prompts)
    unlike = [row for row in rows if ("!" in row["chosen"]) != ("!" in row["rejected"])]
    agreed = fmean("!" in row["rejected"] for row in unlike)
    assert len(unlike) > 20 and agreed > 0.8, (len(unlike), agreed)

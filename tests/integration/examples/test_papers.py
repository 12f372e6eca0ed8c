"""The recipes of papers, each with a small model in place of the published one and a few rows."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from support.doc_blocks import ROOT
from support.running import RunningJobs

PAPERS = ROOT / "examples" / "papers"

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

OASST = ("quality", "toxicity", "humor", "creativity")
HELPSTEER = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
ROWS = 24

Row = dict[str, Any]


def save_model(folder: Path) -> None:
    """Save a random Llama of some thousand weights, with Zephyr's chat template."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["</s>"], initial_alphabet=alphabet)
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.train_from_iterator(["abc <|user|> <|assistant|>"], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>")
    tokenizer.save_pretrained(folder)
    shutil.copy(PAPERS / "chat_template.jinja", folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def rows_by_file() -> dict[str, list[Row]]:
    """Return the rows of every data set that a recipe names, by the name of its file."""
    numbers = random.Random(1)

    def word() -> str:
        return "".join(numbers.choice("abc") for _ in range(4))

    def turn(response: str = "abc") -> list[dict[str, str]]:
        return [{"role": "user", "content": word()}, {"role": "assistant", "content": response}]

    def ratings(names: tuple[str, ...]) -> dict[str, int]:
        return {name: numbers.randint(0, 4) for name in names}

    def pair() -> Row:
        chosen = turn("abc")
        return {"chosen": chosen, "rejected": [chosen[0], {"role": "assistant", "content": "cab"}]}

    unrated: dict[str, None] = dict.fromkeys(OASST + HELPSTEER)
    rated = [unrated | ratings(HELPSTEER if index % 2 else OASST) for index in range(ROWS)]
    return {
        "ultrachat_200k": [{"messages": turn() + turn()} for _ in range(ROWS)],
        "ultrafeedback_binarized": [pair() for _ in range(ROWS)],
        "HelpSteer2": [{"prompt": word(), "response": word()} | ratings(HELPSTEER) for _ in range(ROWS)],
        "attributes": [{"messages": turn()} | each for each in rated],
        "conversations": [{"messages": turn()} for _ in range(ROWS)],
        "questions": [{"messages": turn()[:1]} for _ in range(8)],
        "ultrachat-50k": [{"messages": (chosen := turn())[:1], "chosen": chosen} for _ in range(ROWS)],
        "preferences-160k": [pair() for _ in range(ROWS)],
        "preferences-300k": [pair() | {"chosen_rating": 3.5, "rejected_rating": 1.0} for _ in range(ROWS)],
    }


def shrink(spec: dict[str, Any], folder: Path) -> None:
    """Replace layout, batch and length of a job by small ones, and the hub's data sets by files."""
    for section in ("trainer", "critic"):
        if section in spec:
            spec[section] |= {"ranks": 1, "backend": {"torch": {}}}
    if "rollout" in spec:
        spec["rollout"] |= {"replicas": 1, "engine": {"torch": {}}}
        spec["rollout"]["sampling"]["maxTokens"] = 8
    for reward in spec.get("rewards", []):
        reward["replicas"] = 1
    (algorithm,) = spec["algorithm"].values()
    for field in ("rowsPerStep", "promptsPerStep", "minibatchSequences"):
        if field in algorithm:
            algorithm[field] = 8
    if "promptsPerRound" in algorithm:
        algorithm["promptsPerRound"] = 16
    # Jobs with more steps end with their data.
    if spec.get("maxSteps", 1000) < 1000:
        spec["maxSteps"] = 3
    cosine = spec.get("trainer", {}).get("optimizer", {}).get("schedule", {}).get("cosine")
    if cosine is not None and "floorSteps" in cosine:
        cosine["floorSteps"] = 1
    (data,) = spec["data"].values()
    hub = data.get("source", {}).get("huggingFace")
    if hub is not None:
        data["source"] = {"path": str(folder / f"{hub['name'].split('/')[1]}.jsonl")}


def run_recipe(name: str, folder: Path) -> None:
    """Run the jobs of a recipe to their ends."""
    text = (PAPERS / f"{name}.yaml").read_text(encoding="utf-8")
    text = text.replace("${MODELS}", str(folder / "models")).replace("${DATA}", str(folder))
    jobs = list(yaml.safe_load_all(text))
    for job in jobs:
        path = job["spec"]["policy"]["model"].get("path")
        if path is not None and not Path(path).exists():
            save_model(Path(path))
        shrink(job["spec"], folder)
    for file, rows in rows_by_file().items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{file}.jsonl").write_text(lines, encoding="utf-8")
    path = folder / "jobs.yaml"
    path.write_text(yaml.safe_dump_all(jobs), encoding="utf-8")
    with RunningJobs(path, folder / "runs", "--no-dashboard") as running:
        assert running.end(360) == 0, running.output[-4000:]


def read_steps(folder: Path, job: str) -> list[dict[str, Any]]:
    lines = (folder / "runs" / job / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def read_rows(folder: Path, job: str) -> list[Row]:
    lines = (folder / "runs" / job / "result" / "data.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_ppo_starts_from_the_reward_model_s_scores(tmp_path: Path) -> None:
    run_recipe("llama3-70b-ppo", tmp_path)
    steps = read_steps(tmp_path, "llama3-70b-ppo")
    assert [step["trainer/learning_rate"] for step in steps] == pytest.approx([1e-7] * 3)
    assert steps[0]["kl/coefficient"] == 0.003
    # A head of zeros has the value 0.
    assert steps[0]["value/mean"] != 0


@pytest.mark.parametrize("name", ["zephyr-7b", "zephyr-7b-nemo"])
def test_zephyr(name: str, tmp_path: Path) -> None:
    run_recipe(name, tmp_path)
    first, *_, last = read_steps(tmp_path, f"{name}-dpo")
    # The policy is its own reference at first, up to rounding.
    assert first["preference/margin"] == pytest.approx(0, abs=1e-9)
    assert last["preference/margin"] != first["preference/margin"]


def test_steerlm_annotates_and_requests_the_attributes(tmp_path: Path) -> None:
    run_recipe("steerlm-helpsteer", tmp_path)
    annotated = read_rows(tmp_path, "oasst-annotated")
    assert len(annotated) == ROWS
    assert all(row[name] in range(5) for row in annotated for name in OASST + HELPSTEER)
    for row in read_rows(tmp_path, "llama2-70b-steerlm-answers"):
        request = row["messages"][0]["content"].split("\n")[1]
        assert request.startswith("<extra_id_2>quality:4,toxicity:0,humor:0,creativity:0,helpfulness:4,")


def test_spin_trains_on_this_and_the_last_iteration(tmp_path: Path) -> None:
    run_recipe("spin-7b", tmp_path)
    steps = [read_steps(tmp_path, f"spin-{iteration}") for iteration in range(4)]
    # Two epochs of the rows, 8 a step: those of one iteration, then of two.
    assert [len(each) for each in steps] == [2 * ROWS // 8, *[4 * ROWS // 8] * 3]
    assert [each[0]["preference/margin"] for each in steps] == pytest.approx([0] * 4, abs=1e-5)
    # The rejected responses are the sampled ones.
    assert all(
        each[0]["preference/chosen_logprob"] != each[0]["preference/rejected_logprob"] for each in steps
    )
    peaks = [max(step["trainer/learning_rate"] for step in each) for each in steps]
    assert peaks == pytest.approx([5e-7, 5e-7, 1e-7, 1e-7])


def test_spin_of_nemo(tmp_path: Path) -> None:
    run_recipe("spin-7b-nemo", tmp_path)
    margin = read_steps(tmp_path, "spin-7b-nemo")[0]["preference/margin"]
    assert margin == pytest.approx(0, abs=1e-5)


def test_rpo_goes_on_from_the_last_iteration(tmp_path: Path) -> None:
    run_recipe("nemotron4-rpo", tmp_path)
    for iteration in (1, 2, 3):
        first = read_steps(tmp_path, f"nemotron4-rpo-{iteration}")[0]
        # The gap of the ratings, and the sum over the chosen responses' tokens.
        assert first["preference/given_margin"] == pytest.approx(2.5)
        assert first["preference/margin"] == pytest.approx(0, abs=1e-5)
        assert first["preference/nll_loss"] > 10

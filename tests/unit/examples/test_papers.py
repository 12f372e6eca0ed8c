"""Recipes of papers: published hyperparameters, schedules, and the plans in their README."""

import gzip
import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from kubealign.cli.main import app
from kubealign.planning.byte_units import format_bytes
from kubealign.spec.loading.loader import load_jobs
from kubealign_services.training.torch_backend.optimizer import learning_rate
from support.plan_blocks import printed, shown

PAPERS = Path(__file__).parents[3] / "examples" / "papers"
README = PAPERS / "README.md"
RECIPES = sorted(PAPERS.glob("*.yaml"))

pytestmark = pytest.mark.timeout(60)

#: Published values by job and field, without those that a recipe marks as ours.
PUBLISHED: dict[str, dict[str, Any]] = {
    # NeMo-Aligner, docs/user-guide/steerlm.rst, step 3 for HelpSteer2.
    "helpsteer2-reward": {
        "maxSteps": 317,
        "algorithm.rewardModel.rowsPerStep": 128,
        "trainer.ranks": 8 * 8,
        "trainer.optimizer.adamW.learningRate": 2e-6,
        "trainer.optimizer.schedule.constant.warmupSteps": 10,
        "trainer.backend.megatron.tensorParallel": 8,
        "trainer.backend.megatron.pipelineParallel": 2,
    },
    # NeMo-Aligner, docs/user-guide/rlhf.rst, "PPO Results with TensorRT-LLM"; gpt_ppo_actor.yaml and
    # gpt_ppo_critic.yaml; the card of Llama3-70B-SteerLM-RM.
    "llama3-70b-ppo": {
        "algorithm.ppo.promptsPerStep": 128,
        "algorithm.ppo.minibatchSequences": 128,
        "algorithm.ppo.kl.fixed.coefficient": 3e-3,
        "algorithm.ppo.kl.estimator": "Absolute",
        "algorithm.ppo.gae.lambda": 0.95,
        "algorithm.ppo.clip.low": 0.2,
        "algorithm.ppo.valueClip": 0.2,
        "algorithm.ppo.maskTruncated": True,
        "trainer.optimizer.adamW.learningRate": 1e-7,
        "trainer.optimizer.adamW.betas": [0.9, 0.98],
        "trainer.optimizer.adamW.weightDecay": 0.1,
        "critic.ranks": 4 * 8,
        "critic.optimizer.adamW.learningRate": 9e-6,
        "rewards.0.attributes": {"helpfulness": 0.65, "correctness": 0.8, "coherence": 0.45},
    },
    # Zephyr, section 4.2; the card of mistral-7b-sft-beta.
    "zephyr-7b-sft": {
        "algorithm.sft.rowsPerStep": 512,
        "algorithm.sft.maxEpochs": 1,
        "trainer.ranks": 16,
        "trainer.optimizer.adamW.learningRate": 2e-5,
        "trainer.optimizer.adamW.betas": [0.9, 0.999],
        "trainer.optimizer.schedule.cosine": {"warmupFraction": 0.1, "floor": 0},
    },
    # Zephyr, section 4.2; the card of zephyr-7b-beta; alignment-handbook, recipes/zephyr-7b-beta/README.md
    # (beta) and dpo/config_full.yaml (length of prompts).
    "zephyr-7b-dpo": {
        "algorithm.dpo": {"rowsPerStep": 32, "maxEpochs": 3, "beta": 0.1},
        "data.preferences.maxTokens": 512,
        "trainer.ranks": 16,
        "trainer.optimizer.adamW.learningRate": 5e-7,
        "trainer.optimizer.schedule.linear": {"warmupFraction": 0.1},
    },
    # NeMo-Aligner's paper, section on DPO.
    "zephyr-7b-nemo-sft": {
        "algorithm.sft": {"rowsPerStep": 512, "maxEpochs": 3},
        "trainer.optimizer.adamW.learningRate": 2e-5,
    },
    "zephyr-7b-nemo-dpo": {
        "maxSteps": 300,
        "algorithm.dpo": {"rowsPerStep": 512, "beta": 3e-4},
        "trainer.optimizer.adamW.learningRate": 1e-7,
        "trainer.optimizer.schedule.cosine": {"warmupSteps": 50, "floor": 0.1},
    },
    # NeMo-Aligner, docs/user-guide/steerlm.rst, steps 3 to 6; training_rm.yaml and gpt_sft.yaml.
    "helpsteer-attributes": {
        "maxSteps": 800,
        "algorithm.rewardModel.rowsPerStep": 512,
        "trainer.ranks": 32 * 8,
        "trainer.optimizer.adamW.learningRate": 9e-6,
        "trainer.optimizer.schedule.cosine": {"warmupSteps": 10, "floor": 0.1},
        "trainer.backend.megatron.tensorParallel": 4,
    },
    "oasst-annotated": {"algorithm.annotate.lowest": 0, "algorithm.annotate.highest": 4},
    "llama2-70b-steerlm": {
        "maxSteps": 800,
        "algorithm.sft.rowsPerStep": 128,
        "trainer.ranks": 32 * 8,
        "trainer.optimizer.adamW.learningRate": 6e-6,
        "trainer.optimizer.adamW.weightDecay": 0.01,
        "trainer.backend.megatron.tensorParallel": 8,
        "trainer.backend.megatron.pipelineParallel": 2,
    },
    "llama2-70b-steerlm-answers": {
        "data.prompts.values": {
            **dict.fromkeys(("quality", "helpfulness", "correctness", "coherence"), 4),
            **dict.fromkeys(("complexity", "verbosity"), 4),
            **dict.fromkeys(("toxicity", "humor", "creativity"), 0),
        },
        "rollout.sampling.temperature": 0,
    },
    # uclaml/SPIN, spin/generate.py.
    **{
        f"spin-responses-{iteration}": {
            "rollout.sampling": {"maxTokens": 256, "temperature": 0.8, "topP": 0.95},
        }
        for iteration in range(4)
    },
    # Cards of zephyr-7b-sft-full-SPIN-iter0 to -iter3; uclaml/SPIN, scripts/finetune_iter3.sh (last beta).
    **{
        f"spin-{iteration}": {
            "algorithm.dpo": {"rowsPerStep": 64, "maxEpochs": 2, "beta": beta},
            "data.preferences.maxTokens": 512,
            "trainer.ranks": 8,
            "trainer.optimizer.adamW.learningRate": rate,
            "trainer.optimizer.schedule.linear": {"warmupFraction": 0.1},
        }
        for iteration, (rate, beta) in enumerate([(5e-7, 0.1), (5e-7, 0.1), (1e-7, 0.1), (1e-7, 5.0)])
    },
    # NeMo-Aligner's paper, section on SPIN; docs/user-guide/spin.rst.
    "spin-7b-nemo": {
        "maxSteps": 400,
        "algorithm.spin.rounds": 1,
        "algorithm.spin.rowsPerStep": 64,
        "algorithm.spin.beta": 0.1,
        "trainer.optimizer.adamW.learningRate": 5e-7,
        "trainer.optimizer.schedule.cosine.warmupSteps": 40,
        "rollout.sampling.maxTokens": 2048,
    },
    # Nemotron-4, section 3.3.2.
    "nemotron4-dpo": {"algorithm.dpo.rowsPerStep": 256, "algorithm.dpo.maxEpochs": 1},
    **{
        f"nemotron4-rpo-{iteration}": {
            "algorithm.rpo.rewardScale": 1,
            "algorithm.rpo.nllCoefficient": 1e-5,
            "algorithm.rpo.nllReduction": "Sum",
            "trainer.optimizer.adamW.learningRate": 3e-7,
        }
        for iteration in (1, 2, 3)
    },
}

#: Number of steps, and learning rates by the number of the step, from 1.
RATES: dict[str, tuple[int, dict[int, float]]] = {
    "llama3-70b-ppo": (158, {1: 1e-7, 158: 1e-7}),
    "zephyr-7b-nemo-dpo": (300, {50: 1e-7, 175: (1e-7 + 1e-8) / 2, 300: 1e-8}),
    "llama2-70b-steerlm": (800, {1: 6e-6, 300: 5.501307e-6, 600: 5e-6, 601: 5e-6, 800: 5e-6}),
    "spin-7b-nemo": (400, {20: 2.5e-7, 40: 5e-7, 300: 5e-7, 350: 3e-7, 400: 1e-7}),
    "nemotron4-rpo-3": (1172, {1: 3e-7, 1172: 3e-7}),
}

#: Intervals within which Nemotron-4's report tuned values (section 3.3.2).
TUNED = {
    ("nemotron4-dpo", "trainer.optimizer.adamW.learningRate"): (3e-8, 3e-7),
    ("nemotron4-dpo", "algorithm.dpo.beta"): (3e-4, 3e-3),
    ("nemotron4-dpo", "algorithm.dpo.nllCoefficient"): (1e-5, 1e-3),
    ("nemotron4-rpo-1", "algorithm.rpo.beta"): (1e-3, 1.0),
}


def parameters(recipe: Path) -> dict[str, str]:
    folders = {"MODELS": "shapes", "DATA": "data"}
    text = recipe.read_text(encoding="utf-8")
    return {name: folder for name, folder in folders.items() if f"${{{name}}}" in text}


def documents() -> dict[str, Any]:
    return {
        job["metadata"]["name"]: job["spec"]
        for recipe in RECIPES
        for job in yaml.safe_load_all(recipe.read_text(encoding="utf-8"))
    }


def field(spec: Any, path: str) -> Any:
    for part in path.split("."):
        spec = spec[int(part)] if part.isdigit() else spec[part]
    return spec


DOCUMENTS = documents()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_the_jobs_are_valid(recipe: Path) -> None:
    jobs = load_jobs(recipe, parameters(recipe))
    assert {job.name for job in jobs} <= PUBLISHED.keys()


def test_every_job_has_the_published_hyperparameters() -> None:
    assert DOCUMENTS.keys() == PUBLISHED.keys()
    written = {
        job: {path: field(DOCUMENTS[job], path) for path in values} for job, values in PUBLISHED.items()
    }
    assert written == PUBLISHED


@pytest.mark.parametrize("job", RATES)
def test_the_learning_rates_follow_the_published_schedule(job: str) -> None:
    recipe = next(each for each in RECIPES if f"name: {job}}}" in each.read_text(encoding="utf-8"))
    (parsed,) = [each for each in load_jobs(recipe, parameters(recipe)) if each.name == job]
    optimizer = parsed.spec.effective_trainer.optimizer
    steps, expected = RATES[job]
    rates = {
        step: learning_rate(optimizer.schedule, optimizer.adam_w.learning_rate, step - 1, steps)
        for step in expected
    }
    assert rates == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("job", "path"), TUNED)
def test_choices_are_in_the_middle_of_the_tuned_interval(job: str, path: str) -> None:
    low, high = TUNED[job, path]
    assert field(DOCUMENTS[job], path) == pytest.approx((low * high) ** 0.5, rel=0.1)


@pytest.mark.parametrize("iteration", [1, 2, 3])
def test_iterations_start_from_the_last_one(iteration: int) -> None:
    before = {"job": {"name": f"spin-{iteration - 1}"}}
    assert field(DOCUMENTS[f"spin-{iteration}"], "policy.model") == before
    assert field(DOCUMENTS[f"spin-responses-{iteration}"], "policy.model") == before
    # Chen et al. 2024: the rows of the current and of the last iteration, in equal parts.
    mixture = field(DOCUMENTS[f"spin-{iteration}"], "data.preferences.mixture")
    sources = [entry["source"]["job"]["name"] for entry in mixture]
    assert sources == [f"spin-responses-{iteration}", f"spin-responses-{iteration - 1}"]
    assert not any("weight" in entry for entry in mixture)
    stage = f"nemotron4-rpo-{iteration - 1}" if iteration > 1 else "nemotron4-dpo"
    assert field(DOCUMENTS[f"nemotron4-rpo-{iteration}"], "policy.model") == {"job": {"name": stage}}


def test_the_request_of_steerlm_has_the_format_of_the_training() -> None:
    template = field(DOCUMENTS["llama2-70b-steerlm"], "data.demonstrations.template")
    assert template == field(DOCUMENTS["llama2-70b-steerlm-answers"], "data.prompts.template")
    names = field(DOCUMENTS["helpsteer-attributes"], "data.ratings.format.chat.ratings")
    labels = ",".join(f"{name}:{{{name}}}" for name in names)
    assert template == f"{{prompt}}\n<extra_id_2>{labels}"


def plan(recipe: Path) -> list[dict[str, Any]]:
    words = [f"--param={name}={value}" for name, value in parameters(recipe).items()]
    result = CliRunner().invoke(app, ["plan", str(recipe), *words, "-o", "json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return list(json.loads(result.stdout))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_the_readme_has_the_numbers_of_the_plan(recipe: Path) -> None:
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in README.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    table = {row[0].strip("`"): row[2:4] for row in cells}
    assert table.keys() == PUBLISHED.keys()
    expected = {
        job["job"]: [
            str(job["devices"]),
            ", ".join(f"{each['group']} {format_bytes(each['bytes'])}" for each in job["processes"]),
        ]
        for job in plan(recipe)
    }
    assert {name: table[name] for name in expected} == expected


def test_the_readme_prints_a_plan() -> None:
    blocks = shown(README)
    assert blocks
    for words, text in blocks:
        assert printed(words) == text


@pytest.fixture
def prepare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("papers_prepare", PAPERS / "prepare.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_first_turns_of_ultrachat(prepare: ModuleType) -> None:
    def conversation(*roles: str) -> list[dict[str, str]]:
        return [{"role": role, "content": f"{role} {index}"} for index, role in enumerate(roles)]

    conversations = [conversation("user", "assistant", "user", "assistant"), conversation("system", "user")]
    user, assistant = conversations[0][:2]
    assert prepare.first_turns(conversations, 9, 0) == [{"messages": [user], "chosen": [user, assistant]}]
    many = [conversation("user", "assistant") for _ in range(50)]
    for index, each in enumerate(many):
        each[0]["content"] = str(index)
    sample = prepare.first_turns(many, 20, 1)
    assert sample == prepare.first_turns(many, 20, 1) != prepare.first_turns(many, 20, 2)
    assert len({row["messages"][0]["content"] for row in sample}) == 20


def node(text: str, role: str, *replies: dict[str, Any], **labels: float) -> dict[str, Any]:
    return {
        "text": text,
        "role": role,
        "replies": list(replies),
        "labels": {name: {"value": value, "count": 3} for name, value in labels.items()},
    }


#: A question with two answers, the first of which is followed by a question with and one without an answer.
TREE = {
    "prompt": node(
        "a",
        "prompter",
        node(
            "b",
            "assistant",
            node("c", "prompter", node("d", "assistant", quality=0.1)),
            node("e", "prompter"),
            quality=0.9,
            toxicity=0.0,
        ),
        node("f", "assistant", node("g", "prompter"), spam=0.5),
        quality=1.0,
    )
}


def test_rows_of_openassistant_and_helpsteer(prepare: ModuleType, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    files = {
        "oasst/2023-04-12_oasst_all.trees.jsonl.gz": [TREE],
        "helpsteer/train.jsonl.gz": [
            {"prompt": "p", "response": "r", "helpfulness": 3, "correctness": 4}
            | {"coherence": 4, "complexity": 1, "verbosity": 2}
        ],
        "helpsteer/validation.jsonl.gz": [{"prompt": "q"}, {"prompt": "q"}, {"prompt": "s"}],
    }
    for name, rows in files.items():
        (raw / name).parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(raw / name, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    prepare.prepare_steerlm(raw, tmp_path, 0)

    def read(name: str) -> list[dict[str, Any]]:
        lines = (tmp_path / name).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def texts(row: dict[str, Any]) -> str:
        return "".join(message["content"] for message in row["messages"])

    rated = {texts(row): [row[name] for name in prepare.ATTRIBUTES] for row in read("attributes.jsonl")}
    assert rated == {
        "pr": [None, None, None, None, 3, 4, 4, 1, 2],
        # 0.9 * 4 = 3.6 and 0.1 * 4 = 0.4, rounded. The answer f has no label of an attribute.
        "ab": [4, 0, *[None] * 7],
        "abcd": [0, *[None] * 8],
    }
    assert [texts(row) for row in read("conversations.jsonl")] == ["abcd", "af"]
    roles = [message["role"] for message in read("conversations.jsonl")[0]["messages"]]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert [texts(row) for row in read("questions.jsonl")] == ["q", "s"]


def test_the_chat_template_is_zephyr_s(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>").save_pretrained(tmp_path)
    shutil.copy(PAPERS / "chat_template.jinja", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>\none</s>\n<|assistant|>\ntwo</s>\n<|user|>\nthree</s>\n<|assistant|>\n"

"""The command `kubealign plan`: input, output, and remedies."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kubealign.cli.main import app
from kubealign.planning.byte_units import format_bytes, parse_amount
from kubealign.planning.errors import PlanError

pytestmark = pytest.mark.timeout(60)

JOBS = """\
apiVersion: kubealign.dev/v1alpha1
kind: AlignmentJob
metadata: {name: first}
spec:
  maxSteps: 2
  algorithm: {sft: {}}
  policy: {model: {path: base}}
  data: {demonstrations: {source: {path: rows.jsonl}, maxTokens: 64}}
---
apiVersion: kubealign.dev/v1alpha1
kind: AlignmentJob
metadata: {name: second}
spec:
  maxSteps: 2
  algorithm: {ppo: {promptsPerStep: 4}}
  policy: {model: {job: {name: first}}}
  data: {prompts: {source: {path: rows.jsonl}, maxTokens: 64}}
  critic: {model: {huggingFace: {repo: acme/critic}}}
  reference: {placement: WithTrainer}
  rewards: [{name: right, function: {file: {path: right.py}}}]
  rollout: {replicas: 2, sampling: {maxTokens: 32}}
"""
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 256,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "large.json").write_text(json.dumps(CONFIG | {"hidden_size": 128}))
    path = tmp_path / "jobs.yaml"
    path.write_text(JOBS)
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, words)])


def planned(file: Path, *words: object) -> list[dict[str, Any]]:
    result = run(file, "--config", f"critic={file.parent / 'large.json'}", "-o", "json", *words)
    assert result.stdout, result.stderr
    jobs: list[dict[str, Any]] = json.loads(result.stdout)
    return jobs


def test_json_of_every_job_and_process(file: Path) -> None:
    first, second = planned(file)
    assert [each["group"] for each in first["processes"]] == ["trainer"]
    assert [each["group"] for each in second["processes"]] == ["trainer", "critic", "rollout"]
    assert first["weights"] == second["weights"] == 2 * 256 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 128) + 64
    assert second["devices"] == 4
    assert second["refit"]["bytes"] == 4 * second["weights"]
    trainer, critic, rollout = second["processes"]
    assert trainer["host"]["reference"] == 4 * second["weights"]
    assert critic["parts"]["weights"] > trainer["parts"]["weights"]
    assert rollout["bytes"] == sum(rollout["parts"].values())
    assert "responses of 1024 tokens" in first["tokens"]["assumed"][0]


def test_recorded_experts(file: Path) -> None:
    config = CONFIG | {"model_type": "qwen3_moe", "moe_intermediate_size": 8, "num_experts": 256}
    config |= {"num_hidden_layers": 4, "num_experts_per_tok": 3, "mlp_only_layers": [1], "head_dim": 32}
    (file.parent / "base" / "config.json").write_text(json.dumps(config))
    assert planned(file)[1]["routingRecord"] is None
    file.write_text(JOBS.replace("rollout: {", "rollout: {routingReplay: true, "))
    # Three layers with experts, of which a token has three, whose numbers take two bytes.
    assert planned(file)[1]["routingRecord"] == {"bytesPerToken": 18, "bytesPerStep": 18 * 4 * (64 + 32)}
    table = run(file, "--config", f"critic={file.parent / 'large.json'}").stdout
    assert "recorded experts: 18 B per token" in table and "once on the bus" in " ".join(table.split())
    smaller = json.dumps(config | {"num_experts": 255})
    (file.parent / "base" / "config.json").write_text(smaller)
    assert planned(file)[1]["routingRecord"]["bytesPerToken"] == 9


def test_replicas_of_frozen_models_count(file: Path) -> None:
    """Each replica of a frozen model has a device of its own."""
    with_model = "rewards: [{name: right, model: {path: base}, replicas: 3}]"
    jobs = JOBS.replace("reference: {placement: WithTrainer}", "reference: {replicas: 2}")
    file.write_text(jobs.replace("rewards: [{name: right, function: {file: {path: right.py}}}]", with_model))
    (_, second) = planned(file)
    counts = {each["group"]: each["processes"] for each in second["processes"]}
    assert counts == {"trainer": 1, "critic": 1, "reference": 2, "reward-right": 3, "rollout": 2}
    assert second["devices"] == 9


def test_each_of_several_teachers_is_planned(file: Path) -> None:
    start, end = JOBS.index("  algorithm: {ppo:"), JOBS.index("  rollout:")
    several = """\
  algorithm: {onPolicyDistillation: {promptsPerStep: 4}}
  policy: {model: {job: {name: first}}}
  teachers:
  - {name: math, model: {path: base}, replicas: 2}
  - {name: verse, model: {huggingFace: {repo: acme/verse}}}
  data:
    prompts:
      mixture:
      - {name: sums, source: {path: a.jsonl}, teacher: math}
      - {name: poems, source: {path: b.jsonl}, teacher: verse}
      maxTokens: 64
"""
    file.write_text(JOBS[:start] + several + JOBS[end:])
    refused = run(file)
    assert "spec.teachers[verse].model is" in refused.stderr
    assert "--config teacher-verse=FILE" in refused.stderr
    (_, second) = planned(file, "--config", f"teacher-verse={file.parent / 'large.json'}")
    counts = {each["group"]: each["processes"] for each in second["processes"]}
    assert counts == {"trainer": 1, "teacher-math": 2, "teacher-verse": 1, "rollout": 2}
    weights = {each["group"]: each["parts"]["weights"] for each in second["processes"]}
    assert weights["teacher-verse"] > weights["teacher-math"] == 4 * second["weights"]


def test_ranks_of_frozen_models_divide_their_weights(file: Path) -> None:
    """A rank has a device of its own, and loads the whole model in host memory before it keeps its shard."""
    with_model = "rewards: [{name: right, model: {path: base}, replicas: 2, ranks: 2}]"
    jobs = JOBS.replace("reference: {placement: WithTrainer}", "reference: {ranks: 4}")
    file.write_text(jobs.replace("rewards: [{name: right, function: {file: {path: right.py}}}]", with_model))
    (_, second) = planned(file)
    groups = {each["group"]: each for each in second["processes"]}
    assert (groups["reference"]["processes"], groups["reward-right"]["processes"]) == (4, 4)
    weights = 4 * second["weights"]
    assert groups["reference"]["parts"]["weights"] == weights // 4
    assert groups["reference"]["host"]["loading"] == weights
    loading = groups["reward-right"]["host"]["loading"]
    assert groups["reward-right"]["parts"]["weights"] == loading // 2


def test_table_output(file: Path) -> None:
    result = run(file, "--config", file.parent / "large.json", "--no-color")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("first: ") and "1 devices" in lines[0]
    assert any(line.startswith("rollout   2") and " yes " in line for line in lines)
    assert any(line.startswith("refit: ") for line in lines)


def test_a_job_that_does_not_fit_has_a_remedy(file: Path) -> None:
    (_, second) = planned(file)
    needed = second["processes"][-1]["bytes"]
    (_, second) = planned(file, "--gpu-memory", needed - 1)
    rollout = second["processes"][-1]
    assert not second["fits"] and not rollout["fits"]
    assert rollout["remedy"] == "set spec.trainer.backend.torch.precision: BFloat16"
    config = ("--config", file.parent / "large.json", "--gpu-memory")
    assert run(file, *config, needed - 1).exit_code == 1
    nothing = run(file, *config, "1GiB").stdout
    assert "no known change makes it fit: most of it is process" in nothing


def test_the_remedy_makes_the_job_fit(file: Path) -> None:
    """Setting the fields of the remedy by --set makes the job fit."""
    memory = "1565MiB"
    (first, _) = planned(file, "--gpu-memory", memory)
    (trainer,) = first["processes"]
    assert not trainer["fits"]
    assert trainer["remedy"].startswith("set spec.trainer.")
    changes = trainer["remedy"].removeprefix("set ").split(", ")
    words = [word for change in changes for word in ("--set", "first:" + change.replace(": ", "=", 1))]
    (first, _) = planned(file, "--gpu-memory", memory, *words)
    assert first["processes"][0]["fits"]


def test_a_sequence_that_is_too_long_gets_more_ranks(file: Path) -> None:
    """FSDP2 divides no activations: more ranks alone do not help."""
    small = "backend: {torch: {microbatchTokens: 2048, precision: BFloat16, gradientCheckpointing: true}}"
    file.write_text(JOBS.replace("\n---", f"\n  trainer: {{{small}}}\n---", 1))
    sizes = ("--prompt-tokens", 64, "--response-tokens", 1 << 20)
    (trainer,) = planned(file, *sizes)[0]["processes"]
    memory = trainer["parts"]["process"] + trainer["parts"]["activations"] * 3 // 4
    (trainer,) = planned(file, *sizes, "--gpu-memory", memory)[0]["processes"]
    assert trainer["remedy"] == "set spec.trainer.ranks: 2, spec.trainer.backend.torch.contextParallel: 2"


def test_a_reference_that_is_too_large_gets_another_precision(file: Path) -> None:
    wide = file.parent / "wide"
    wide.mkdir()
    (wide / "config.json").write_text(json.dumps(CONFIG | {"hidden_size": 1024, "intermediate_size": 4096}))
    file.write_text(JOBS.replace("{placement: WithTrainer}", "{placement: Own, model: {path: wide}}"))
    needed = {each["group"]: each["bytes"] for each in planned(file)[1]["processes"]}["reference"]
    remedies = {
        each["group"]: each["remedy"] for each in planned(file, "--gpu-memory", needed - 1)[1]["processes"]
    }
    assert remedies["reference"] == "set spec.trainer.backend.torch.precision: BFloat16"
    assert remedies["trainer"] is None


@pytest.mark.parametrize(
    ("words", "expected_text"),
    [
        ([], "spec.critic.model is huggingFace, whose config.json is not here"),
        (["--config", "critic=none.json"], "none.json cannot be read as a config.json"),
        (["--gpu-memory", "much"], "--gpu-memory is 'much'; it must be an amount above 0"),
    ],
)
def test_errors_name_the_invalid_input(file: Path, words: list[str], expected_text: str) -> None:
    result = run(file, *words)
    assert result.exit_code == 1
    assert expected_text in result.stderr


def test_byte_amounts() -> None:
    assert [parse_amount(text, "x") for text in ("80GiB", "1.5Gi", "50GB/s", "7")] == [
        80 * 2**30,
        3 * 2**29,
        50 * 10**9,
        7,
    ]
    assert [format_bytes(size) for size in (0, 1023, 1024, 1536 * 2**20, 123 * 2**30)] == [
        "0 B",
        "1023 B",
        "1.00 KiB",
        "1.50 GiB",
        "123 GiB",
    ]
    for text in ("", "-1GiB", "GiB", "5 apples"):
        with pytest.raises(PlanError):
            parse_amount(text, "x")


def test_a_reference_that_is_too_large_in_any_precision_gets_ranks(file: Path) -> None:
    wide = file.parent / "wide"
    wide.mkdir()
    (wide / "config.json").write_text(
        json.dumps(CONFIG | {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 40})
    )
    file.write_text(JOBS.replace("{placement: WithTrainer}", "{placement: Own, model: {path: wide}}"))
    needed = {each["group"]: each["parts"] for each in planned(file)[1]["processes"]}["reference"]
    memory = needed["process"] + needed["weights"] // 4
    processes = planned(file, "--gpu-memory", memory)[1]["processes"]
    remedy = {each["group"]: each["remedy"] for each in processes}["reference"]
    assert re.fullmatch(
        r"set spec\.trainer\.backend\.torch\.precision: BFloat16, spec\.reference\.ranks: [248]", remedy
    )


def test_offloaded_activations_and_a_quantised_base_of_policy_and_critic(file: Path) -> None:
    """Both models hold less on the device; their activations are in host memory."""
    (_, plain) = planned(file)
    saving = "backend: {torch: {activationOffload: true}}, lora: {quantization: {nf4: {}}}"
    jobs = JOBS.replace("  critic: {", f"  critic: {{{saving}, ")
    file.write_text(f"{jobs}  trainer: {{{saving}}}\n")
    (_, small) = planned(file)
    for before, after in zip(plain["processes"][:2], small["processes"][:2], strict=True):
        assert before["group"] == after["group"]
        assert "activations" not in before["host"] and after["host"]["activations"] > 0
        assert after["parts"]["weights"] < before["parts"]["weights"]

"""Commands that help to write a job: init, explain, and the generated docs page."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic.alias_generators import to_snake
from typer.testing import Result

from kubealign.cli.commands.spec.init import algorithm_names
from kubealign.cli.main import COMMANDS
from kubealign.cli.reference_page import build_page
from kubealign.spec.algorithms import Algorithm
from kubealign.spec.docs.field_explanation import complete_path, explain_field
from kubealign.spec.docs.job_template import job_template
from kubealign.spec.field_lookup import document_fields, item_type, nested_model
from kubealign.spec.job import AlignmentJob

Run = Callable[..., Result]
PAGE = Path(__file__).parents[6] / "docs" / "cli.md"
ALGORITHMS = algorithm_names()
LEFT_OUT = {
    "sft": {"rewards", "rollout", "reference", "critic", "teacher", "teachers"},
    "distillation": {"rewards", "rollout", "reference", "critic", "teachers"},
    "dpo": {"rewards", "rollout", "critic", "teacher", "teachers"},
    "ppo": {"teacher", "teachers"},
    "grpo": {"critic", "teacher", "teachers"},
    "spin": {"rewards", "reference", "critic", "teacher", "teachers"},
    "generate": {"trainer", "validation", "reference", "critic", "teacher", "teachers"},
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_init_writes_a_valid_job(run: Run, tmp_path: Path, algorithm: str) -> None:
    written = run("init", algorithm)
    assert written.exit_code == 0, written.output
    path = tmp_path / "job.yaml"
    path.write_text(written.stdout)
    checked = run("validate", str(path))
    assert (checked.exit_code, checked.stdout) == (0, f"{path}: 1 job, valid\n"), checked.stderr


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_commented_fields_are_the_defaults(algorithm: str) -> None:
    text = job_template(algorithm, "mine")
    full_job = re.sub(r"^( *)#(\w+:)", r"\1\2", text, flags=re.MULTILINE)
    assert full_job.count("\n") == text.count("\n") and len(full_job) < len(text)
    assert AlignmentJob.from_yaml(full_job) == AlignmentJob.from_yaml(text)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_template_has_every_meaningful_field(algorithm: str) -> None:
    text = job_template(algorithm, "mine")
    lines = set(re.findall(r"^  #?(?:# )?(\w+)(?::| is not set)", text, flags=re.MULTILINE))
    left_out = set(document_fields(nested_model(AlignmentJob.model_fields["spec"].annotation))) - lines  # type: ignore[arg-type]
    assert left_out == LEFT_OUT.get(algorithm, left_out)


def test_init_has_every_algorithm() -> None:
    assert [to_snake(name) for name in ALGORITHMS] == list(Algorithm.model_fields)


@pytest.mark.parametrize("arguments", [("dpo2",), (), ("--help",)])
def test_init_lists_the_algorithms(
    run: Run, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a narrow terminal the list is broken within names, beside other text.
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 1000)
    done = run("init", *arguments)
    text = re.sub(r"[^a-z_-]", "", done.stdout + done.stderr)
    assert all(name in text for name in ALGORITHMS)


def test_other_commands_do_not_import_the_spec_for_the_choices_of_init() -> None:
    program = (
        "import sys\n"
        "from typer.main import get_command\n"
        "from kubealign.cli.main import app\n"
        "get_command(app)\n"
        "print('kubealign.spec' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"


def test_init_with_a_job_name(run: Run) -> None:
    assert "  name: sums\n" in run("init", "sft", "--name", "sums").stdout
    done = run("init", "sft", "--name", "Not_A_Name")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "metadata.name: must be lower-case letters" in done.stderr
    assert run("init", "dpo2").exit_code == 2


def test_explain_field(run: Run) -> None:
    text = run("explain", "spec.algorithm.ppo.gae.lambda").stdout
    assert re.search(r"^DEFAULT +1\.0$", text, re.MULTILINE)
    assert re.search(r"^BOUNDS +at least 0, at most 1$", text, re.MULTILINE)
    text = " ".join(run("explain", "spec.algorithm.dapo.minibatchSequences").stdout.split())
    assert "the importance ratio is then 1, and clipping never acts" in text
    text = run("explain", "spec.policy.model").stdout
    assert "EXACTLY ONE OF" in text and "  huggingFace  HuggingFaceModel" in text
    assert "A repository of the Hugging Face hub." in text
    assert "required" in run("explain", "spec").stdout
    assert run("explain", "aj.spec.rewards[0].weight").stdout == run("explain", "spec.rewards.weight").stdout
    assert "Succeeded is final, Failed until a retry is requested" in run("explain", "status.phase").stdout
    assert "  metadata" in run("explain").stdout


@pytest.mark.parametrize(
    ("path", "expected_text"),
    [
        (
            "spec.algoritm",
            "no field spec.algoritm: did you mean spec.algorithm? spec has suspend, managedBy, seed,",
        ),
        ("algorithm.ppo", "no field algorithm: did you mean spec.algorithm?"),
        ("spec.promptsPerStep", "did you mean spec.algorithm.*.promptsPerStep?"),
        ("spec.seed.more", "no field spec.seed.more: spec.seed has no fields"),
        ("status.fase", "no field status.fase: did you mean status.phase?"),
        ("spec.algorithm.sft.xyzzy", "no field spec.algorithm.sft.xyzzy: spec.algorithm.sft has rowsPerStep"),
    ],
)
def test_unknown_field_suggests_the_closest(run: Run, path: str, expected_text: str) -> None:
    done = run("explain", path)
    assert done.exit_code == 1
    assert expected_text in done.stderr


def test_every_field_can_be_explained() -> None:
    def walk(model: type, above: str) -> int:
        count = 0
        for name, field in document_fields(model).items():
            path = f"{above}.{name}" if above else name
            assert explain_field(path).field.path == path
            below = nested_model(item_type(field.annotation) or field.annotation)
            count += 1 + (walk(below, path) if below is not None and path.count(".") < 3 else 0)
        return count

    assert walk(AlignmentJob, "") > 100


def test_paths_are_completed() -> None:
    assert complete_path("spec.algorithm.p") == ["spec.algorithm.ppo"]
    assert complete_path("s") == ["spec", "status"]
    assert complete_path("nothing.here") == []


def test_generated_page_is_up_to_date() -> None:
    assert PAGE.read_text() == build_page(), "run: python -m kubealign.cli.reference_page --write docs/cli.md"


def test_every_command_and_option_has_help() -> None:
    text = build_page()
    for name in (name for panel in COMMANDS.values() for name in panel):
        assert f"\n### {name}\n" in text
    assert [
        row for row in text.splitlines() if row.startswith("| `") and row.rstrip("| ").endswith("`")
    ] == []

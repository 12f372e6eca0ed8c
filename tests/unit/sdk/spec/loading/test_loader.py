"""Loading of job files: lines, parameters, overrides, paths, and errors between documents."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kubealign.spec.errors import SpecErrors
from kubealign.spec.loading.loader import load_files, load_jobs
from kubealign.spec.loading.overrides import Override
from kubealign.spec.loading.parameters import substitute
from kubealign.spec.loading.yaml_documents import YamlDocument, parse_documents, parse_scalar

Make = Callable[..., dict[str, Any]]
Write = Callable[..., Path]

SFT = """\
apiVersion: kubealign.dev/v1alpha1
kind: AlignmentJob
metadata: {name: sft}
spec:
  maxSteps: ${STEPS:-10}
  seed: ${SEED}
  algorithm: {sft: {}}
  policy: {model: {path: "${MODELS}/base"}}
  trainer: {optimizer: {adamW: {learningRate: 1e-7}}}
  data:
    demonstrations:
      source: {path: data/train.jsonl}
"""


def failures(
    path: Path, *, parameters: dict[str, str] | None = None, overrides: tuple[str, ...] = ()
) -> list[str]:
    with pytest.raises(SpecErrors) as caught:
        load_jobs(path, parameters or {}, overrides)
    return [str(error).removeprefix(str(path)).removeprefix(":") for error in caught.value.errors]


def test_parameters_paths_and_numbers(write: Write, tmp_path: Path) -> None:
    (job,) = load_jobs(write(SFT), {"SEED": "3", "MODELS": "../m"})
    assert (job.spec.seed, job.spec.max_steps) == (3, 10)
    assert job.spec.trainer.optimizer.adam_w.learning_rate == 1e-7
    assert job.spec.policy.model.path == str(tmp_path.parent / "m" / "base")
    assert job.spec.data.value.source.path == str(tmp_path / "data" / "train.jsonl")


def test_each_path_of_a_list_is_relative_to_the_file(write: Write, tmp_path: Path) -> None:
    several = SFT.replace("{path: data/train.jsonl}", "{paths: [data/*.jsonl, ../more.jsonl, /c.jsonl]}")
    (job,) = load_jobs(write(several), {"SEED": "3", "MODELS": "../m"})
    assert job.spec.data.value.source.paths == [
        str(tmp_path / "data" / "*.jsonl"),
        str(tmp_path.parent / "more.jsonl"),
        "/c.jsonl",
    ]


def test_a_missing_parameter_is_one_error_with_its_line(write: Write) -> None:
    assert failures(write(SFT), parameters={"MODELS": "m"}) == [
        '6: sft: spec.seed: needs the parameter SEED: give --param SEED=VALUE (it holds "${SEED}")'
    ]


def test_an_unused_parameter_is_an_error(write: Write) -> None:
    given_parameters = {"SEED": "1", "MODELS": "m", "STEP": "5"}
    assert failures(write(SFT), parameters=given_parameters) == [
        "--param STEP: no document has this parameter: did you mean STEPS? there are MODELS, SEED, STEPS"
    ]


@pytest.mark.parametrize("malformed", ["${", "${1}", "${A-b}", "${A"])
def test_a_malformed_parameter(malformed: str, document: Make, write: Write) -> None:
    (error,) = failures(write(document("sft", {"spec.policy.model.path": malformed})))
    assert "is not a parameter: write ${NAME}" in error


def test_a_parameter_takes_the_type_of_its_field(document: Make, write: Write) -> None:
    # A revision of digits is text; a quoted ${STEPS} is a number.
    changes = {
        "spec.policy.model": {"huggingFace": {"repo": "a/b", "revision": "REVISION"}},
        "spec.maxSteps": "${STEPS}",
    }
    text = yaml.safe_dump(document("sft", changes)).replace("REVISION", "${REVISION}")
    text = text.replace("maxSteps: ${STEPS}", 'maxSteps: "${STEPS}"')
    (job,) = load_jobs(write(text), {"REVISION": "1234567", "STEPS": "7"})
    assert job.spec.policy.model.hugging_face is not None
    assert job.spec.policy.model.hugging_face.revision == "1234567"
    assert job.spec.max_steps == 7


def test_a_parameter_in_an_untyped_field_is_parsed_as_yaml(document: Make, write: Write) -> None:
    sizes = {"hidden_size": "${SIZE}", "model_type": "${KIND}"}
    model = {"config": {"architecture": sizes, "tokenizer": {"path": "t"}}}
    (job,) = load_jobs(write(document("sft", {"spec.policy.model": model})), {"SIZE": "64", "KIND": "llama"})
    assert job.spec.policy.model.config is not None
    assert job.spec.policy.model.config.architecture == {"hidden_size": 64, "model_type": "llama"}


def test_an_error_has_the_line_of_the_field(document: Make, write: Write) -> None:
    (error,) = failures(path := write(document("rloo", {"spec.critic": {"ranks": 1}})))
    assert path.read_text().splitlines()[int(error.split(":")[0]) - 1] == "  critic:"


def test_a_parameter_cannot_inject_yaml(document: Make, write: Write) -> None:
    path = write(document("sft", {"spec.policy.model.path": "${P}"}))
    (job,) = load_jobs(path, {"P": "/a: {b: c}"})
    assert job.spec.policy.model.path == "/a: {b: c}"


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9]{0,6}", fullmatch=True)


@given(st.text(), st.dictionaries(KEYS, st.text(), max_size=3))
def test_substitution_returns_the_given_values(text: str, parameters: dict[str, str]) -> None:
    escaped = text.replace("${", "$${")
    used: set[str] = set()
    if "$$${" not in escaped:
        assert substitute(escaped, parameters, used) == text
        assert used == set()
    template = "|".join(f"${{{name}}}" for name in parameters)
    assert substitute(template, parameters, used) == "|".join(parameters.values())
    assert used == set(parameters)


@given(st.lists(KEYS, min_size=1, max_size=4), SCALARS, SCALARS)
def test_an_override_changes_only_its_path(keys: list[str], value: Any, other: Any) -> None:
    document = YamlDocument(0, {"metadata": {"name": "job"}, "spec": {"-other": other}}, {})
    text = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
    override = Override.parse(f"job:spec.{'.'.join(keys)}={text}")
    assert override.applies(document)
    override.apply(document)
    node = document.value["spec"]
    assert node.pop("-other") == other
    for key in keys:
        assert list(node) == [key]
        node = node[key]
    assert node == value


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_numbers_in_python_notation_are_parsed_as_numbers(number: float) -> None:
    assert parse_scalar(repr(number)) == number
    assert type(parse_scalar(repr(number))) is type(number)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-7", 1e-7), ("1E5", 1e5), ("-2.5e+3", -2500.0), (".5", 0.5), ("1_000", 1000), ("017", 17),
        ("on", True), ("~", None), ("", None), ("-", [None]), ("{a: 1e-3}", {"a": 1e-3}),
        *((same, same) for same in ("12:30", "2026-11-21", "0x1f", "1e", "a: b: c", "${X}", "!!py/none x")),
    ],
)  # fmt: skip
def test_scalars(text: str, value: Any) -> None:
    assert parse_scalar(text) == value


def test_overrides(document: Make, write: Write) -> None:
    path = write(document("sft"), document("rloo"))
    sft, rloo = load_jobs(
        path,
        overrides=[
            "spec.seed=7",
            "sft:spec.maxSteps=3",
            "rloo:spec.rewards[0].weight=0.5",
            "rloo:spec.rewards.exact.timeoutSeconds=5",
            "rloo:spec.rollout.sampling={maxTokens: 4, topP: 0.9}",
            "rloo:spec.policy.model.path=77",
        ],
    )
    assert (sft.spec.seed, rloo.spec.seed) == (7, 7)
    assert (sft.spec.max_steps, rloo.spec.max_steps) == (3, 10)
    assert (rloo.spec.rewards[0].weight, rloo.spec.rewards[0].timeout_seconds) == (0.5, 5.0)
    assert rloo.spec.effective_rollout is not None
    assert rloo.spec.effective_rollout.sampling.max_tokens == 4
    assert rloo.spec.policy.model.path == str(path.parent / "77")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("spec.seed", ["--set spec.seed: must be PATH=VALUE"]),
        ("seed=2", ["did you mean spec.seed?"]),
        ("spec..seed=2", ["is not a path in a job"]),
        ("spec.rewards[x]=2", ["is not a path in a job"]),
        ("rlo:spec.seed=2", ["there is no job rlo: did you mean rloo? there are sft, rloo"]),
        ("rloo:spec.maxSteps.x=2", ["spec.maxSteps is neither an object nor a list"]),
        ("rloo:spec.rewards[1].weight=2", ["spec.rewards has no entry 1: it has 1 (exact)"]),
        ("rloo:spec.rewards.exat.weight=2", ["spec.rewards has no entry exat"]),
        ("rloo:spec.seed=x", ["rloo: spec.seed: must be a whole number", "from --set rloo:spec.seed=x"]),
        ("rloo:spec.sed=1", ["spec.sed: is no field here: did you mean seed?", "from --set"]),
        ("rloo:spec.algorithm.ppo={}", ["ppo and rloo are set", "from --set rloo:spec.algorithm.ppo={}"]),
    ],
)
def test_bad_overrides(override: str, words: list[str], document: Make, write: Write) -> None:
    (error,) = failures(write(document("sft"), document("rloo")), overrides=(override,))
    for word in words:
        assert word in error


def test_every_error_of_every_document_at_once(document: Make, write: Write) -> None:
    path = write(
        document("sft", {"spec.maxSteps": 0, "spec.sed": 1}),
        document("rloo", {"spec.critic": {}}),
        document("ppo", {"spec.trainer.ranks": 0, "spec.rewards": []}),
        "metadata: {name: [}\n",
    )
    with pytest.raises(SpecErrors) as caught:
        load_jobs(path)
    assert [(e.document, e.job, e.path) for e in caught.value.errors] == [
        (0, "sft", "spec.maxSteps"),
        (0, "sft", "spec.sed"),
        (1, "rloo", "spec.critic"),
        # The rewards are compared with the algorithm although another field of the spec is wrong.
        (2, "ppo", "spec.rewards"),
        (2, "ppo", "spec.trainer.ranks"),
        (None, None, ""),
    ]
    text = path.read_text().splitlines()
    for error in caught.value.errors:
        assert error.line is not None
        assert error.path.split(".")[-1] in text[error.line - 1]
    assert "is not YAML" in str(caught.value.errors[-1])
    assert len(str(caught.value).splitlines()) == 6


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", " is empty: it holds no job"),
        ("---\n---\n# nothing\n", " is empty: it holds no job"),
        ("- a\n", "that begins with apiVersion, kind, metadata and spec (it holds a list of 1)"),
        ("hello", 'that begins with apiVersion, kind, metadata and spec (it holds "hello")'),
        ("a:\n\tb: 1\n", "found character '\\t' that cannot start any token; indent with spaces"),
        ("a: {b: ${X}}\n", '; inside { } and [ ] put a parameter in quotes: "${NAME}"'),
        ("a: *b\n", "1: is not YAML: found undefined alias 'b'"),
        ("[" * 3000, " is not a job: its values are nested too deeply"),
    ],
)  # fmt: skip
def test_texts_that_are_not_jobs(text: str, error: str, write: Write) -> None:
    (failure,) = failures(write(text))
    assert failure.endswith(error)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: a: occurs twice, first in line 1"),
        ("a: !!binary x\n", "line 1: a: has the tag !!binary, which jobs do not support: remove it"),
        ("a: &x [*x]\n", "line 1: a[0]: refers to itself: write the value out"),
        ("a: !!int x\n", 'line 1: a: is tagged as int but is not one (it holds "x")'),
        ("? [1]\n: 2\n", "line 1: has a field whose name is not text"),
    ],
)
def test_unsupported_yaml_is_an_error(text: str, error: str) -> None:
    _, errors = parse_documents(text, {}, set())
    assert [str(failure) for failure in errors] == [error]


def test_alias_expansion_is_limited() -> None:
    text = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
    _, errors = parse_documents(text, {}, set())
    assert "stand for more than 100000 values" in str(errors[0])


def test_anchors_and_merges() -> None:
    (document,), errors = parse_documents("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: *a}\n", {}, set())
    assert errors == []
    assert document.value == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": {"x": 1, "y": 2}}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert failures(tmp_path / "none.yaml") == [" there is no such file"]
    assert failures(tmp_path) == [" is a folder: name the file in it"]
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff\n")
    assert failures(tmp_path / "bytes.yaml") == [" is not UTF-8 text: byte 3 is invalid"]


def test_duplicate_job_names_are_errors(document: Make, write: Write) -> None:
    (error,) = failures(write(document("sft"), document("rloo", {"metadata.name": "sft"})))
    assert error.endswith(
        "metadata.name: another job of this file has this name, in line 4: rename one (it holds sft)"
    )


def test_result_kinds_must_fit_their_field(document: Make, write: Write) -> None:
    path = write(
        document("sft", {"spec.policy.model": {"job": {"name": "rewardmodel"}}}),
        document("rewardModel"),
        document("ppo", {"spec.rewards": [{"name": "a", "model": {"job": {"name": "sft"}}}]}),
    )
    first, second = failures(path)
    assert (
        "sft: spec.policy.model.job.name: must be a job that makes a policy: rewardmodel makes a reward"
        in first
    )
    assert (
        "ppo: spec.rewards[0].model.job.name: must be a job that makes a reward model: sft makes a policy"
        in second
    )


def test_rows_must_come_from_data_jobs(document: Make, write: Write) -> None:
    rows = {"spec.data.demonstrations.source": {"job": {"name": "rloo"}}}
    (error,) = failures(write(document("sft", rows), document("rloo")))
    path = "sft: spec.data.demonstrations.source.job.name"
    assert f"{path}: must be a job that makes data: rloo makes a policy" in error
    generate = {"spec.algorithm": {"generate": {}}}
    jobs = load_jobs(write(document("sft", rows), document("rloo", generate)))
    assert [job.name for job in jobs] == ["sft", "rloo"]


def test_dependency_cycles_have_a_line(document: Make, write: Write) -> None:
    path = write(
        document("sft", {"spec.policy.model": {"job": {"name": "rloo"}}}),
        document("rloo", {"spec.policy.model": {"job": {"name": "sft"}}}),
    )
    (error,) = failures(path)
    assert "waits for itself: sft needs rloo needs sft" in error or "rloo needs sft needs rloo" in error
    line = int(error.split(":")[0])
    assert "name: " in path.read_text().splitlines()[line - 1]


def test_a_parameter_needs_to_be_used_in_one_file_only(document: Make, write: Write) -> None:
    first = write(document("sft", {"spec.policy.model.path": "${P}"}), name="first.yaml")
    second = write(document("rloo"), name="second.yaml")
    files, errors = load_files([first, second], {"P": "x"}, ["sft:spec.seed=4"])
    assert errors == []
    assert [len(file.jobs) for file in files] == [1, 1]
    assert files[0].jobs[0].spec.seed == 4

"""Preparation of whole jobs: real text, models from configs, results of other jobs, and invalid input."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForSequenceClassification

from kubealign.spec.job import AlignmentJob
from kubealign_services.data.collate import collate
from kubealign_services.data.errors import DataError
from kubealign_services.data.preparation import prepare
from kubealign_services.data.prepared import load_prepared
from kubealign_services.data.tokenization.tokenizers import load_tokenizer, train_character_tokenizer
from support.preparing import SIZES, from_config, job, rows, sft

pytestmark = pytest.mark.timeout(120)

GSM8K = Path(__file__).parents[4] / "shared" / "data" / "gsm8k"
SUMS = [{"prompt": f"{n}+1=", "response": f"{n + 1}", "kind": "odd" if n % 2 else "even"} for n in range(9)]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_real_text_with_a_trained_byte_level_tokenizer(run_dir: Path) -> None:
    if not GSM8K.is_dir():
        pytest.skip(f"the GSM8K files are not at {GSM8K}")
    model = from_config({"train": {"byteLevelBpe": {"vocabularySize": 1000}}}, max_position_embeddings=300)
    text = {"text": {"prompt": "question", "response": "answer"}}
    prepared = prepare(
        job(
            {
                "algorithm": {"sft": {}},
                "policy": {"model": model},
                "data": {"demonstrations": {"source": {"path": str(GSM8K / "train.jsonl")}, "format": text}},
                "validation": {
                    "data": {
                        "demonstrations": {
                            "source": {"path": str(GSM8K / "train.jsonl")},
                            "format": text,
                            "limit": 20,
                        }
                    }
                },
            }
        ),
        run_dir,
        {},
    )
    report = prepared.report.train
    assert (report.rows_read, report.truncated, report.unknown_tokens) == (7473, 0, 0)
    assert report.rows_kept + report.dropped == 7473 and 0 < report.dropped < 7473
    assert report.longest_sequence <= 300
    assert len(prepared.train) == report.rows_kept
    lines = (GSM8K / "train.jsonl").read_text().splitlines()
    tokenizer = prepared.tokenizer
    assert len(tokenizer) == 1000
    for index in (0, 1, len(prepared.train) - 1):
        row = prepared.train[index]
        given = json.loads(lines[row.row])
        assert row.prompt_text == given["question"] == tokenizer.decode(row.prompt_tokens)
        assert row.response_tokens is not None and row.response_tokens[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(row.response_tokens[:-1]) == given["answer"] == row.columns["answer"]
    assert prepared.validation is not None and prepared.validation[0].row == 0


def test_real_preferences(run_dir: Path) -> None:
    if not GSM8K.is_dir():
        pytest.skip(f"the GSM8K files are not at {GSM8K}")
    prepared = prepare(
        job(
            {
                "algorithm": {"rewardModel": {}},
                "policy": {"model": from_config(max_position_embeddings=4096)},
                "data": {"preferences": {"source": {"path": str(GSM8K / "preferences.jsonl")}}},
            }
        ),
        run_dir,
        {},
    )
    assert prepared.report.train.rows_kept == 365
    batch = collate([prepared.train[3], prepared.train[364]], ["0/3", "0/364"], prepared.train.kind)
    assert batch.sample_ids == ["0/3/chosen", "0/3/rejected", "0/364/chosen", "0/364/rejected"]
    assert int(batch.tokens.max()) < len(prepared.tokenizer)


def test_a_model_from_a_config_is_drawn_from_the_seed(tmp_path: Path) -> None:
    data = rows(tmp_path, SUMS)
    before = torch.random.get_rng_state()
    result = {
        name: prepare(sft(data, seed=seed), tmp_path / name, {})
        for name, seed in (("a", 5), ("b", 5), ("c", 6))
    }
    assert torch.equal(before, torch.random.get_rng_state())
    weights = {name: load_file(p.model_folder("policy") / "model.safetensors") for name, p in result.items()}
    assert weights["a"].keys() == weights["b"].keys()
    assert all(torch.equal(weights["a"][key], weights["b"][key]) for key in weights["a"])
    assert not torch.equal(weights["a"]["lm_head.weight"], weights["c"]["lm_head.weight"])
    model = AutoModelForCausalLM.from_pretrained(result["a"].model_folder("policy"))
    tokenizer = result["a"].tokenizer
    assert model.config.vocab_size == len(tokenizer) == 3 + len("0123456789+=")
    assert (model.config.eos_token_id, model.config.pad_token_id) == (tokenizer.eos_token_id, 0)
    assert model.dtype == torch.float32


def test_second_run_reuses_the_preparation(tmp_path: Path, run_dir: Path) -> None:
    data = rows(tmp_path, SUMS)
    first = prepare(sft(data), run_dir, {})
    stamps = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    # The data may be missing by then.
    (tmp_path / "rows.jsonl").unlink()
    second = prepare(sft(data, maxSteps=7, checkpoint={"keep": 9}), run_dir, {})
    assert stamps == {path: path.stat().st_mtime_ns for path in second.folder.rglob("*")}
    assert list(second.train) == list(first.train)
    with pytest.raises(
        DataError, match=r"spec\.data\.demonstrations\.limit was null, is 3.*start the job afresh"
    ):
        prepare(sft(data | {"limit": 3}), run_dir, {})


def test_rows_of_several_files_are_numbered_through(tmp_path: Path, run_dir: Path) -> None:
    for name, part in (("b", SUMS[5:]), ("a", SUMS[:5])):
        rows(tmp_path, part, f"{name}.jsonl")
    data = {"source": {"path": str(tmp_path / "*.jsonl")}}
    prepared = prepare(sft(data), run_dir, {})
    assert [(row.row, row.prompt_text) for row in prepared.train] == [
        (number, f"{number}+1=") for number in range(9)
    ]
    assert prepared.report.train.source == f"{tmp_path / 'a.jsonl'} to {tmp_path / 'b.jsonl'} (2 files)"
    one_file = prepare(sft(rows(tmp_path, SUMS, "all.json")), tmp_path / "one", {})
    assert list(one_file.train) == list(prepared.train)


@pytest.mark.parametrize(
    ("row", "field", "problem"),
    [
        ({"prompt": "1+1=", "response": 3}, {}, ": column 'response' holds 3 (int), not text"),
        ({"prompt": "1+1="}, {}, " has no column 'response'"),
        ({"prompt": "1+1=" * 9, "response": "2"}, {"maxTokens": 9, "overlong": "Fail"}, " is too long"),
    ],
)
@pytest.mark.parametrize("tokenizer", ["characters", "byteLevelBpe"])
def test_errors_of_rows_name_the_file_and_the_row_in_it(
    tmp_path: Path, run_dir: Path, row: dict[str, Any], field: dict[str, Any], problem: str, tokenizer: str
) -> None:
    """Row 7 of all is the second of the second file. A tokenizer that is trained reads the rows first."""
    rows(tmp_path, SUMS[:5], "a.jsonl")
    rows(tmp_path, [*SUMS[5:6], row], "b.jsonl")
    data = {"source": {"path": str(tmp_path / "*.jsonl")}} | field
    model = from_config({"train": {tokenizer: {}}})
    with pytest.raises(DataError) as caught:
        prepare(sft(data, policy={"model": model}), run_dir, {})
    assert str(caught.value).startswith(f"row 7 (row 2 of {tmp_path / 'b.jsonl'}){problem}")


def test_files_that_match_later_leave_the_prepared_rows_unchanged(tmp_path: Path, run_dir: Path) -> None:
    """A resumed job reads the stored rows, as after a change in one file; another list is refused."""
    rows(tmp_path, SUMS, "b.jsonl")
    data = {"source": {"paths": [str(tmp_path / "*.jsonl")]}}
    first = list(prepare(sft(data), run_dir, {}).train)
    rows(tmp_path, SUMS, "a.jsonl")
    assert list(prepare(sft(data), run_dir, {}).train) == first
    other = {"source": {"paths": [str(tmp_path / "b.jsonl")]}}
    with pytest.raises(
        DataError, match=r"spec\.data\.demonstrations\.source\.paths\[0\] was .*start the job afresh"
    ):
        prepare(sft(other), run_dir, {})


def test_what_an_interrupted_preparation_left_is_removed(tmp_path: Path, run_dir: Path) -> None:
    (run_dir / ".prepared-0123" / "policy").mkdir(parents=True)
    with pytest.raises(DataError):
        prepare(sft(rows(tmp_path, [{"prompt": "a", "response": 3}])), run_dir, {})
    assert list(run_dir.iterdir()) == []
    with pytest.raises(DataError, match="the job is not prepared"):
        load_prepared(run_dir)
    prepare(sft(rows(tmp_path, SUMS)), run_dir, {})
    assert [path.name for path in run_dir.iterdir()] == ["prepared"]


def test_killed_preparation_leaves_no_result(tmp_path: Path, run_dir: Path) -> None:
    given = sft(rows(tmp_path, SUMS))
    document = tmp_path / "job.json"
    document.write_text(given.model_dump_json(by_alias=True))
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from kubealign.spec.job import AlignmentJob\n"
        "from kubealign_services.data import preparation\n"
        "def killed(*arguments, **options): os.kill(os.getpid(), signal.SIGKILL)\n"
        "preparation.write_rows = killed\n"
        "job = AlignmentJob.model_validate_json(Path(sys.argv[1]).read_text())\n"
        "preparation.prepare(job, Path(sys.argv[2]), {})\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(document), str(run_dir)], timeout=100, check=False
    )
    assert ended.returncode == -9
    assert not (run_dir / "prepared").exists() and len(list(run_dir.iterdir())) == 1
    assert len(prepare(given, run_dir, {}).train) == len(SUMS)
    assert [path.name for path in run_dir.iterdir()] == ["prepared"]


def reward_model(folder: Path, alphabet: str, labels: int = 1, positions: int = 64) -> Path:
    tokenizer = train_character_tokenizer([alphabet])
    config = LlamaConfig(
        **{key: value for key, value in SIZES.items() if key != "model_type"}
        | {"max_position_embeddings": positions},
        vocab_size=len(tokenizer),
        pad_token_id=0,
    )
    config.num_labels = labels
    LlamaForSequenceClassification(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(folder)
    return folder


ALPHABET = "0123456789+="


def ppo(tmp_path: Path, policy: dict[str, Any], **spec: Any) -> AlignmentJob:
    return job(
        {
            "algorithm": {"ppo": {"promptsPerStep": 2}},
            "policy": {"model": policy},
            "data": {"prompts": rows(tmp_path, SUMS, "prompts.jsonl")},
            "rewards": [{"name": "preference", "model": {"job": {"name": "rm"}}}],
            "rollout": {"sampling": {"maxTokens": 8}},
        }
        | spec
    )


def test_ppo_with_other_jobs_results_points_to_them(tmp_path: Path, run_dir: Path) -> None:
    policy = prepare(sft(rows(tmp_path, SUMS)), tmp_path / "sft", {}).model_folder("policy")
    reward = reward_model(tmp_path / "rm", ALPHABET, positions=32)
    given = ppo(tmp_path, {"job": {"name": "sft"}})
    prepared = prepare(given, run_dir, {"sft": policy, "rm": reward})
    assert prepared.models == {
        "policy": policy,
        "reference": policy,
        "critic": reward,
        "reward-preference": reward,
    }
    assert not list(prepared.folder.rglob("*.safetensors"))
    # The shortest context, the reward model's, less 8 sampled tokens.
    assert prepared.report.context == 32
    row = prepared.train[1]
    assert (row.prompt_text, row.response_tokens) == ("1+1=", None)
    assert row.columns == {"response": "2", "kind": "odd"}
    shutil.rmtree(reward)
    with pytest.raises(DataError, match="the model of critic is missing"):
        prepared.model_folder("critic")
    with pytest.raises(DataError, match="no model for reward-other; it has critic, policy"):
        prepared.model_folder("reward-other")


def test_models_that_do_not_fit_the_policy(tmp_path: Path, run_dir: Path) -> None:
    policy = prepare(sft(rows(tmp_path, SUMS)), tmp_path / "sft", {}).model_folder("policy")
    given = ppo(tmp_path, {"job": {"name": "sft"}})
    cases = {
        r"spec\.rewards\[0\]\.model\.job\.name: there is no result of a job rm; known are: sft": {},
        r"spec\.rewards\[0\]\.model: .* tokenizer is not the policy's": {
            "rm": reward_model(tmp_path / "other", "9876543210*=")
        },
        "the tokenizer has ids up to 14, the model's vocabulary has 13 entries": {
            "rm": reward_model(tmp_path / "small", "0123456789")
        },
        "holds LlamaForCausalLM, not a reward model": {"rm": policy},
        r"job: there is no folder": {"rm": tmp_path / "gone"},
    }
    for text, results in cases.items():
        with pytest.raises(DataError, match=text):
            prepare(given, run_dir, {"sft": policy, **results})


def test_reward_model_is_rejected_as_policy(tmp_path: Path, run_dir: Path) -> None:
    folder = reward_model(tmp_path / "rm", ALPHABET)
    given = sft(rows(tmp_path, SUMS), policy={"model": {"path": str(folder)}})
    with pytest.raises(DataError, match=r"spec\.policy\.model: .*a reward model, not a language model"):
        prepare(given, run_dir, {})


def test_chat_rows_and_a_tokenizer_without_template_or_pad_token(tmp_path: Path, run_dir: Path) -> None:
    """Check that the prepared policy is a folder of links with a completed tokenizer, and that the original
    is unchanged."""
    texts = ["User:\n0123456789+=\n\nAssistant:\n"]
    messages = [
        {
            "messages": [
                {"role": "user", "content": row["prompt"]},
                {"role": "assistant", "content": row["response"]},
            ]
        }
        for row in SUMS
    ]
    data = rows(tmp_path, messages) | {"format": {"chat": {}}}
    source = tmp_path / "source"
    prepare(
        sft(rows(tmp_path, [{"prompt": texts[0], "response": ""}], "texts.jsonl")), tmp_path / "first", {}
    )
    shutil.copytree(tmp_path / "first" / "prepared" / "policy", source)
    config = json.loads((source / "tokenizer_config.json").read_text())
    del config["pad_token"]
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    prepared = prepare(sft(data, policy={"model": {"path": str(source)}}), run_dir, {})
    assert before == {path.name: path.read_bytes() for path in source.iterdir()}
    policy = prepared.model_folder("policy")
    assert policy == prepared.folder / "policy"
    assert (policy / "model.safetensors").is_symlink() and not (policy / "tokenizer.json").is_symlink()
    AutoModelForCausalLM.from_pretrained(policy)
    tokenizer = load_tokenizer(policy, "policy.model")
    assert tokenizer.pad_token == "<eos>" and len(tokenizer) == len(load_tokenizer(source, "source"))
    row = prepared.train[2]
    assert row.prompt_text == "User:\n2+1=\n\nAssistant:\n"
    assert tokenizer.decode(row.prompt_tokens) == row.prompt_text
    assert prepared.report.train.unknown_tokens == 0
    # A job that starts from this tokenizer has nothing to complete.
    again = prepare(sft(data, policy={"model": {"path": str(policy)}}), tmp_path / "again", {})
    assert again.model_folder("policy") == policy


def test_the_chat_template_of_the_job(tmp_path: Path, run_dir: Path) -> None:
    """Check that it replaces the model's own one in rows and in the prepared policy, also from a file."""
    messages = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    data = rows(tmp_path, [{"messages": messages}]) | {"format": {"chat": {}}}
    first = prepare(sft(data), tmp_path / "first", {}).model_folder("policy")
    own = load_tokenizer(first, "first").chat_template
    template = (
        "{% for message in messages %}{{ message.role | title + ':\n\n' + message.content + '\n\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:\n\n' }}{% endif %}"
    )
    file = tmp_path / "template.jinja"
    file.write_text(template)
    for folder, source in ((run_dir, {"text": template}), (tmp_path / "second", {"path": str(file)})):
        policy = {"model": {"path": str(first)}, "chatTemplate": source}
        prepared = prepare(sft(data, policy=policy), folder, {})
        assert prepared.train[0].prompt_text == "User:\n\n1+1=\n\nAssistant:\n\n"
        assert load_tokenizer(prepared.model_folder("policy"), "policy").chat_template == template
        assert (prepared.model_folder("policy") / "model.safetensors").is_symlink()
    assert load_tokenizer(first, "first").chat_template == own != template


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"text": "\n{% for m in messages %}"}, r"chatTemplate.text: line 2: Unexpected end of template"),
        ({"path": "absent.jinja"}, r"chatTemplate.path: absent.jinja cannot be read: .*No such file"),
    ],
)
def test_chat_templates_that_cannot_be_used(
    tmp_path: Path, run_dir: Path, source: dict[str, str], message: str
) -> None:
    policy = {"model": from_config(), "chatTemplate": source}
    with pytest.raises(DataError, match=r"spec\.policy\." + message):
        prepare(sft(rows(tmp_path, SUMS), policy=policy), run_dir, {})


def test_truncated_and_dropped_rows_are_counted(tmp_path: Path, run_dir: Path) -> None:
    lines = [{"prompt": "1" * 4, "response": "2"}, {"prompt": "3" * 9 + "4", "response": "2"}]
    data = rows(tmp_path, lines) | {"maxTokens": 5}
    dropped = prepare(sft(data), run_dir, {})
    assert (dropped.report.train.dropped, dropped.report.train.truncated) == (1, 0)
    assert [row.row for row in dropped.train] == [0]
    truncated = prepare(sft(data | {"overlong": "Truncate"}), tmp_path / "second", {})
    assert (truncated.report.train.dropped, truncated.report.train.truncated) == (0, 1)
    assert truncated.tokenizer.decode(truncated.train[1].prompt_tokens) == "33334"


def test_ratings_and_parquet_and_a_data_set_folder(tmp_path: Path) -> None:
    lines = [
        {"prompt": "1+1=", "response": "2", "rating": 1.5},
        {"prompt": "2+2=", "response": "5", "rating": -1},
    ]
    folder = tmp_path / "set"
    folder.mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(lines), folder / "train.parquet")
    for name, source in {
        "file": {"path": str(folder / "train.parquet")},
        "folder": {"huggingFace": {"name": str(folder)}},
    }.items():
        prepared = prepare(
            job(
                {
                    "algorithm": {"rewardModel": {"objective": {"regression": {}}}},
                    "policy": {"model": from_config()},
                    "data": {"ratings": {"source": source}},
                }
            ),
            tmp_path / name,
            {},
        )
        assert [row.ratings for row in prepared.train] == [[1.5], [-1.0]]
        assert [path.name for path in (tmp_path / name).iterdir()] == ["prepared"]
        assert not (prepared.folder / "cache").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"policy": {"model": from_config(hiden_size=8)}},
            r"architecture\.hiden_size: .*did you mean hidden_size",
        ),
        ({"policy": {"model": from_config(vocab_size=8)}}, "vocab_size: it is taken from the tokenizer"),
        ({"policy": {"model": from_config(hidden_size="8")}}, "no llama config can be built from it"),
        (
            {"policy": {"model": from_config(num_attention_heads=3)}},
            "not a multiple of the number of attention",
        ),
        (
            {"policy": {"model": from_config(hidden_act="none")}},
            "no causal language model can be built from it",
        ),
        ({"policy": {"model": {"path": "/nowhere/model"}}}, r"spec\.policy\.model\.path: there is no folder"),
        (
            {"policy": {"model": from_config({"path": "/nowhere"})}},
            r"tokenizer\.path: /nowhere holds no tokenizer",
        ),
        (
            {"policy": {"model": {"volume": {"claimName": "models"}}}},
            r"spec\.policy\.model\.volume\.claimName: the volume models is not mounted here",
        ),
        (
            {"policy": {"model": from_config(max_position_embeddings=4)}},
            "nothing is left of .*all 9 rows were dropped.*4 in a prompt, 4 with its response",
        ),
    ],
)
def test_invalid_model_configs_are_reported(
    tmp_path: Path, run_dir: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        prepare(sft(rows(tmp_path, SUMS), **change), run_dir, {})
    assert not list(run_dir.iterdir())


def test_validation_columns_are_checked(tmp_path: Path, run_dir: Path) -> None:
    value = {"demonstrations": rows(tmp_path, SUMS, "held.jsonl")}
    validation = {"data": value, "groupBy": "kin"}
    with pytest.raises(
        DataError, match=r"spec\.validation\.groupBy: .* no column 'kin'.*did you mean 'kind'"
    ):
        prepare(sft(rows(tmp_path, SUMS), validation=validation), run_dir, {})
    with pytest.raises(DataError, match=r"groupBy: 'prompt' is the prompt"):
        prepare(sft(rows(tmp_path, SUMS), validation=validation | {"groupBy": "prompt"}), run_dir, {})
    holes = {"demonstrations": rows(tmp_path, [SUMS[0], {"prompt": "1", "response": "1"}], "holes.jsonl")}
    with pytest.raises(DataError, match="row 2 has no column 'kind' to group by"):
        prepare(sft(rows(tmp_path, SUMS), validation={"data": holes, "groupBy": "kind"}), run_dir, {})


def test_unreachable_hub_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the error in offline mode. The setting is read once, so a separate process is used."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from kubealign.spec.sections.models import Model\n"
        "from kubealign.spec.sections.data import DataSource\n"
        "from kubealign_services.data.errors import DataError\n"
        "from kubealign_services.data.models.model_folders import find_model_folder\n"
        "from kubealign_services.data.sources.row_dataset import open_source\n"
        "model = Model.model_validate({'huggingFace': {'repo': 'acme/sft-7b', 'revision': 'abc'}})\n"
        "source = DataSource.model_validate({'huggingFace': {'name': 'acme/prompts'}})\n"
        "for call in (lambda: find_model_folder(model, 'spec.policy.model', {}),\n"
        "             lambda: open_source(source, 'spec.data.source', Path(sys.argv[1]))):\n"
        "    try: call()\n"
        "    except DataError as error: print(error)\n"
    )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    messages = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        timeout=100,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert messages[0].startswith("spec.policy.model.huggingFace: acme/sft-7b at abc cannot be fetched")
    assert messages[1].startswith(
        "spec.data.source.huggingFace: the data set acme/prompts (split train) cannot be"
    )

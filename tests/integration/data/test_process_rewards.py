"""Labels of steps in prepared rows, and process reward models that do not fit the job."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kubealign_services.data.errors import DataError
from kubealign_services.data.models.resolution import differing_tokens
from kubealign_services.data.preparation import prepare
from kubealign_services.data.prepared import PreparedJob
from kubealign_services.data.tokenization.tokenizers import train_bpe_tokenizer, train_character_tokenizer
from support.preparing import from_config, job, rows
from support.tiny_rewards import classifier_folder, policy_folder, reward_folder

pytestmark = pytest.mark.timeout(120)

ALPHABET = "0123456789+=;"


def labelled_job(folder: Path, lines: Sequence[dict[str, Any]], form: dict[str, Any] | None = None) -> Any:
    given = form or {"text": {"steps": {"separator": ";"}}}
    return job(
        {
            "algorithm": {"rewardModel": {"objective": {"stepClassification": {}}}},
            "policy": {"model": from_config()},
            "data": {"ratings": rows(folder, lines) | {"format": given}},
        }
    )


def steps_of(prepared: PreparedJob) -> list[list[tuple[str, float | None]]]:
    """Return the text of each step of each row, with its label, by the tokens between the steps' ends."""
    result = []
    for row in prepared.train:
        assert row.response_tokens is not None and row.step_tokens is not None and row.step_labels is not None
        starts = [0, *(end + 1 for end in row.step_tokens)]
        texts = [
            prepared.tokenizer.decode(row.response_tokens[start : end + 1])
            for start, end in zip(starts, row.step_tokens, strict=False)
        ]
        assert row.step_tokens[-1] == len(row.response_tokens) - 1
        result.append(list(zip(texts, row.step_labels, strict=True)))
    return result


def test_labels_are_at_the_last_token_of_their_step(tmp_path: Path) -> None:
    lines = [
        {"prompt": "1+1=", "response": "1+1;2", "labels": [True, False]},
        {"prompt": "1+2=", "response": ["1", "2", "3"], "labels": [1, 0.25, None]},
        {"prompt": "1+3=", "response": "4;", "labels": [0]},
    ]
    prepared = prepare(labelled_job(tmp_path, lines), tmp_path / "run", {})
    end = prepared.tokenizer.eos_token
    assert steps_of(prepared) == [
        [("1+1;", 1), (f"2{end}", 0)],
        [("1;", 1), ("2;", 0.25), (f"3{end}", None)],
        [(f"4;{end}", 0)],
    ]
    assert [row.ratings for row in prepared.train] == [None] * 3


def test_rows_of_other_names(tmp_path: Path) -> None:
    """Check the columns of TRL's stepwise supervision."""
    lines = [{"prompt": "1+1=", "completions": ["1+1", "2"], "labels": [True, True]}]
    form = {"text": {"response": "completions", "steps": {"separator": "\n"}}}
    prepared = prepare(labelled_job(tmp_path, lines, form), tmp_path / "run", {})
    end = prepared.tokenizer.eos_token
    assert steps_of(prepared) == [[("1+1\n", 1), (f"2{end}", 1)]]


def test_the_last_answer_of_a_conversation_has_the_steps(tmp_path: Path) -> None:
    question, answer = {"role": "user", "content": "1+1="}, {"role": "assistant", "content": "1+1;2"}
    lines = [{"messages": [question, answer], "right": [True, False]}]
    form = {"chat": {"steps": {"separator": ";", "labels": "right"}}}
    prepared = prepare(labelled_job(tmp_path, lines, form), tmp_path / "run", {})
    ((first, second),) = steps_of(prepared)
    assert first == ("1+1;", 1)
    assert second[0].startswith("2") and second[1] == 0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"labels": [True]},
            r"row 1.*'labels' has 1 labels, and the separator ';' divides the response into 2 steps",
        ),
        ({"labels": [True, 2]}, r"item 2 is 2 \(int\); a label is true, false, null or a number from 0 to 1"),
        ({"labels": [True, "no"]}, "item 2 is .*no.*; a label is true, false, null or a number"),
        ({"labels": [None, None]}, "no label of a step is known: remove the row"),
        ({"labels": 1}, r"'labels' holds 1 \(int\), not a list"),
        ({}, r"spec\.data\.ratings\.format\.text\.steps\.labels: .* has no column 'labels'"),
        ({"labels": [True, True], "response": ["1", 2]}, "not a list of texts"),
    ],
    # Errors contain the folder, whose name is that of the test.
    ids=range(7),
)
def test_bad_labels(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    lines = [{"prompt": "1+1=", "response": "1;2"} | row]
    with pytest.raises(DataError, match=message):
        prepare(labelled_job(tmp_path, lines), tmp_path / "run", {})


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, str]:
    tokenizer = train_character_tokenizer([ALPHABET])
    result = {
        "plain": reward_folder(tmp_path / "plain", ALPHABET),
        "whole": reward_folder(tmp_path / "whole", ALPHABET, pooling="LastToken"),
        "steps": classifier_folder(tmp_path / "steps", tokenizer, pooling="Steps", step_separator=";"),
        "two": classifier_folder(tmp_path / "two", tokenizer, ["wrong", "right"]),
        "three": classifier_folder(tmp_path / "three", tokenizer, ["a", "b", "c"]),
        "policy": policy_folder(tmp_path / "policy", ALPHABET),
    }
    return {name: str(path) for name, path in result.items()}


def rewarded(folder: Path, policy: str, **reward: Any) -> Any:
    return job(
        {
            "algorithm": {"grpo": {"credit": "Steps"} if "steps" in reward else {}},
            "policy": {"model": {"path": policy}},
            "data": {"prompts": rows(folder, [{"prompt": "1+1="}])},
            "rewards": [{"name": "prm"} | reward],
            "rollout": {"sampling": {"maxTokens": 4}},
        }
    )


@pytest.mark.parametrize("model", ["plain", "steps", "two"])
def test_models_that_score_steps(tmp_path: Path, folders: dict[str, str], model: str) -> None:
    given = rewarded(tmp_path, folders["policy"], model={"path": folders[model]}, steps={"separator": ";"})
    assert prepare(given, tmp_path / "run", {}).model_folder("reward-prm") == Path(folders[model])


@pytest.mark.parametrize(
    ("model", "steps", "message"),
    [
        (
            "whole",
            ";",
            r"spec\.rewards\[0\]\.model: it is a reward model of whole responses \(LastToken\): remove steps",
        ),
        (
            "steps",
            ",",
            "trained with the separator ';' between steps, and steps.separator of the reward is ','",
        ),
        ("steps", None, "is a process reward model, .*: set steps of the reward, with the separator ';'"),
        ("three", ";", "has the scores a, b, c; a process reward model has one, the logit of a right step"),
    ],
    ids=range(4),
)
def test_models_that_do_not_fit(
    tmp_path: Path, folders: dict[str, str], model: str, steps: str | None, message: str
) -> None:
    fields = {} if steps is None else {"steps": {"separator": steps}}
    given = rewarded(tmp_path, folders["policy"], model={"path": folders[model]}, **fields)
    with pytest.raises(DataError, match=message):
        prepare(given, tmp_path / "run", {})


def test_an_ensemble_has_no_process_reward_model(tmp_path: Path, folders: dict[str, str]) -> None:
    models = [{"path": folders["plain"]}, {"path": folders["steps"]}]
    with pytest.raises(DataError, match="is a process reward model"):
        prepare(rewarded(tmp_path, folders["policy"], ensemble={"models": models}), tmp_path / "run", {})


def test_steps_need_the_policys_tokens(tmp_path: Path, folders: dict[str, str]) -> None:
    tokenizer = train_bpe_tokenizer(["1+1=2;", "12;3"], 40)
    other = str(classifier_folder(tmp_path / "other", tokenizer))
    assert differing_tokens(tokenizer, train_character_tokenizer([ALPHABET]))
    given = rewarded(tmp_path, folders["policy"], model={"path": other}, steps={"separator": ";"})
    with pytest.raises(DataError, match="the steps are those of the policy's tokens: use a model with"):
        prepare(given, tmp_path / "run", {})

"""Rows, models and reward functions of a program as inputs of its jobs."""

import importlib.util
import json
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

import kubealign
from kubealign.errors import InputInvalid
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer

ROWS = [{"prompt": "3+4=", "answer": 7, "tags": ["sum", None]}, {"prompt": "ü", "answer": 0.5, "tags": []}]


def lines(source: dict[str, str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(source["path"]).read_text().splitlines()]


def test_rows_are_stored_under_the_digest_of_their_content(tmp_path: Path) -> None:
    source = kubealign.store_rows(ROWS, tmp_path / "new")
    assert lines(source) == ROWS
    assert Path(source["path"]).is_absolute()
    assert kubealign.store_rows(iter([OrderedDict(row) for row in ROWS]), tmp_path / "new") == source
    assert kubealign.store_rows(ROWS[::-1], tmp_path / "new") != source
    assert len(list((tmp_path / "new").iterdir())) == 2


def test_a_dataset_is_rows(tmp_path: Path) -> None:
    assert lines(kubealign.store_rows(Dataset.from_list(ROWS), tmp_path)) == ROWS


def no_rows_after_one() -> Iterator[dict[str, Any]]:
    yield {"prompt": "a"}
    raise RuntimeError("the table is gone")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "there are no rows to store"),
        (
            [{"a": 1}, "prompt"],
            r"row 2 is a str, not a mapping of columns; of a pandas frame give frame.to_dict\(",
        ),
        ([{"a": 1, "b": {1, 2}}], "row 1, column 'b': Object of type set is not JSON serializable"),
        ([{"a": 1}, {"b": math.nan}], "row 2, column 'b': Out of range float values are not JSON compliant"),
    ],
)
def test_rows_that_json_cannot_represent_are_named(tmp_path: Path, rows: Any, message: str) -> None:
    with pytest.raises(InputInvalid, match=message):
        kubealign.store_rows(rows, tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_error_of_the_rows_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the table is gone"):
        kubealign.store_rows(no_rows_after_one(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_model_is_stored_once_with_its_tokenizer(tmp_path: Path) -> None:
    tokenizer = train_character_tokenizer(["0123456789+="])
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes))
    stored = kubealign.store_model(model, tokenizer, tmp_path)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in Path(stored["path"]).iterdir()
    }
    assert kubealign.store_model(model, tokenizer, tmp_path) == stored
    assert [path.name for path in tmp_path.iterdir()] == [Path(stored["path"]).name]
    model.lm_head.weight.data[0, 0] += 1
    assert kubealign.store_model(model, tokenizer, tmp_path) != stored


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputInvalid, match="the model is a str without a method save_pretrained"):
        kubealign.store_model("acme/base", None, tmp_path)  # type: ignore[arg-type]


def program(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a file as the main program."""
    path = tmp_path / "program.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("__main__", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "__main__", module)
    spec.loader.exec_module(module)
    return module


DEFINED = '''"""A program."""
import math
LIMIT: float = 2.0
WORDS = ["a", "b"]

def right(prompts, responses, **columns):
    return [1.0] * len(responses)
'''


def test_a_function_of_a_program_is_named_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = DEFINED + "\nif __name__ == '__main__':\n    print('submit')\n"
    function = program(tmp_path, text, monkeypatch).right
    assert kubealign.reward_function(function) == {
        "file": {"path": str(tmp_path / "program.py"), "name": "right"}
    }


@pytest.mark.parametrize("statement", ["print('submit')", "TABLE = dict(a=1)", "for word in WORDS: pass"])
def test_a_program_that_would_run_again_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    function = program(tmp_path, f"{DEFINED}\n{statement}\n", monkeypatch).right
    with pytest.raises(InputInvalid, match="whose line 9 would run again in the reward's process"):
        kubealign.reward_function(function)


def test_a_function_of_a_file_and_one_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "plain_rewards.py").write_text(f"{DEFINED}\nprint('runs at import')\n")
    (tmp_path / "reward_package").mkdir()
    (tmp_path / "reward_package" / "__init__.py").write_text("")
    (tmp_path / "reward_package" / "sums.py").write_text(DEFINED)
    plain = importlib.import_module("plain_rewards").right
    assert kubealign.reward_function(plain)["file"]["path"] == str(tmp_path / "plain_rewards.py")
    packaged = importlib.import_module("reward_package.sums").right
    assert kubealign.reward_function(packaged) == {"module": "reward_package.sums:right"}


def nested() -> Callable[..., Any]:
    def inner(prompts: list[str], responses: list[str]) -> list[float]:
        return [0.0] * len(responses)

    return inner


@pytest.mark.parametrize("function", [nested(), lambda **columns: [0.0], max, "reward.py"])
def test_a_function_without_a_name_at_the_top_level_is_refused(function: Any) -> None:
    with pytest.raises(InputInvalid, match="cannot be imported by name: define the reward with def"):
        kubealign.reward_function(function)


def test_a_function_of_a_notebook_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(compile(DEFINED, "/tmp/ipykernel_1/2.py", "exec"), module.__dict__)
    with pytest.raises(InputInvalid, match="right is defined in no file, such as in a notebook"):
        kubealign.reward_function(module.right)

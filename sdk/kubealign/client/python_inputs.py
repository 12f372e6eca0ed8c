"""Inputs of jobs from Python objects: rows, models and reward functions, as the parts of a spec that name
them.

    client.submit({
        "metadata": {"name": "sums"},
        "spec": {
            "maxSteps": 100,
            "algorithm": {"grpo": {}},
            "policy": {"model": store_model(model, tokenizer)},
            "data": {"prompts": {"source": store_rows([{"prompt": "3+4=", "answer": "7"}, ...])}},
            "rewards": [{"name": "right", "function": reward_function(right)}],
        },
    })

Rows and models are stored under the digest of their content, so equal objects give equal paths, and a job
that is submitted again names the same files. The paths are those of this machine.
"""

import ast
import hashlib
import inspect
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from kubealign.errors import InputInvalid

_DIGEST_LENGTH = 16


class PretrainedObject(Protocol):
    """A model or tokenizer of transformers."""

    def save_pretrained(self, save_directory: str) -> Any: ...


def store_rows(rows: Iterable[Mapping[str, Any]], folder: Path | str = "inputs") -> dict[str, str]:
    """Store rows as JSON Lines and return the `source` of a data set that names them.

    Args:
        rows: One mapping of column names to JSON values per row, such as a list of dicts or a
            `datasets.Dataset`.
        folder: Folder for the file.

    Raises:
        InputInvalid: A row is no mapping or holds a value that JSON cannot represent, or there are no rows.
    """
    folder = Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    digest, count = hashlib.sha256(), 0
    with tempfile.TemporaryDirectory(dir=folder, prefix=".rows-") as drafts:
        draft = Path(drafts) / "rows.jsonl"
        with draft.open("wb") as file:
            for count, row in enumerate(rows, start=1):
                line = _encode_row(row, count)
                digest.update(line)
                file.write(line)
        if count == 0:
            raise InputInvalid("there are no rows to store")
        path = folder / f"rows-{digest.hexdigest()[:_DIGEST_LENGTH]}.jsonl"
        draft.replace(path)
    return {"path": str(path)}


def store_model(
    model: PretrainedObject, tokenizer: PretrainedObject, folder: Path | str = "inputs"
) -> dict[str, str]:
    """Store a model with its tokenizer in Hugging Face's layout and return the `model` that names them.

    Args:
        model: A model of transformers, of any precision.
        tokenizer: The model's tokenizer.
        folder: Folder in which the model gets a folder.

    Raises:
        InputInvalid: One of the two cannot be saved.
    """
    for name, value in (("model", model), ("tokenizer", tokenizer)):
        if not callable(getattr(value, "save_pretrained", None)):
            raise InputInvalid(
                f"the {name} is a {type(value).__name__} without a method save_pretrained: give a {name} of "
                'transformers, or name a stored one by {"path": FOLDER}'
            )
    folder = Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".model-") as drafts:
        draft = Path(drafts) / "model"
        model.save_pretrained(str(draft))
        tokenizer.save_pretrained(str(draft))
        path = folder / f"model-{_folder_digest(draft)}"
        if not path.exists():
            draft.replace(path)
    return {"path": str(path)}


def reward_function(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the `function` of a reward that names a Python function `f(prompts, responses, **columns)`.

    The reward's process imports the function: from its package, or from the file that defines it. The file
    of a program may define it too, where importing that file runs nothing else.

    Raises:
        InputInvalid: The function cannot be imported by name, or its file runs other code.
    """
    name = getattr(function, "__qualname__", "")
    if not inspect.isfunction(function) or not name.isidentifier():
        raise InputInvalid(
            f"{name or function!r} cannot be imported by name: define the reward with def at the top level "
            "of a file"
        )
    module = sys.modules.get(function.__module__)
    if getattr(module, "__package__", None) and getattr(module, name, None) is function:
        return {"module": f"{function.__module__}:{name}"}
    source = inspect.getsourcefile(function)
    if source is None or not Path(source).is_file():
        raise InputInvalid(
            f"{name} is defined in no file, such as in a notebook: write it to one, in a notebook with "
            "%%writefile FILE, and set function.file.path"
        )
    path = Path(source).absolute()
    if function.__module__ == "__main__":
        _check_only_defines(path, name)
    return {"file": {"path": str(path), "name": name}}


def _encode_row(row: object, number: int) -> bytes:
    if not isinstance(row, Mapping):
        raise InputInvalid(
            f"row {number} is a {type(row).__name__}, not a mapping of columns; of a pandas frame give "
            'frame.to_dict("records")'
        )
    try:
        return json.dumps(dict(row), ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise InputInvalid(f"row {number}, column {_unencodable_column(row)}: {error}") from error


def _unencodable_column(row: Mapping[Any, Any]) -> str:
    for name, value in row.items():
        try:
            json.dumps({name: value}, allow_nan=False)
        except (TypeError, ValueError):
            return repr(name)
    return "?"


def _folder_digest(folder: Path) -> str:
    """Return the digest of the files' names and contents."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:_DIGEST_LENGTH]


def _check_only_defines(path: Path, name: str) -> None:
    """Raise InputInvalid where importing the program's file runs more than definitions."""
    for statement in ast.parse(path.read_bytes()).body:
        if not _is_definition(statement):
            raise InputInvalid(
                f"{name} is defined in the program {path}, whose line {statement.lineno} would run again in "
                "the reward's process: put it under `if __name__ == '__main__':`, or move the function to a "
                "file of its own"
            )


def _is_definition(statement: ast.stmt) -> bool:
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign() | ast.AnnAssign():
            return not any(isinstance(node, ast.Call | ast.Await) for node in ast.walk(statement))
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
    return False

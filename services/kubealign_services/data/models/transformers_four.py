"""Model folders in the form that transformers 4 reads.

The environment of an engine may have transformers 4, as TensorRT-LLM's has, while the models of a job were
built or exported by transformers 5. Version 4 ignores the fields of version 5 that it does not know: the
base of the rotary embedding would be its default, without a warning.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import transformers

from kubealign_services.data.errors import DataError
from kubealign_services.data.models.checkpoint_layout import TRANSFORMERS_MAJOR
from kubealign_services.data.prepared import PreparedJob

_CONFIG, _TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
_POLICY = "policy"
#: Types of rotary embeddings that version 4 reads from `rope_scaling` for every architecture.
_SCALINGS = ("linear", "dynamic", "yarn", "llama3")


@asynccontextmanager
async def open_readable_policy(prepared: PreparedJob, files: Path) -> AsyncIterator[PreparedJob]:
    """Yield the job with a folder of the policy that this process's transformers reads as version 5 does.

    The folder is the policy's own, or one of links to its files with rewritten configurations, which exists
    until the end of the block.

    Args:
        prepared: Prepared job.
        files: Folder in which the new folder is created.

    Raises DataError for a policy whose configuration has no form in version 4.
    """
    folder = prepared.model_folder(_POLICY)
    rewritten = {} if TRANSFORMERS_MAJOR >= 5 else _rewritten_files(folder)
    if not rewritten:
        yield prepared
        return
    with _linked_folder(folder, rewritten, files) as name:
        yield replace(prepared, models={**prepared.models, _POLICY: Path(name)})


def _linked_folder(
    folder: Path, rewritten: Mapping[str, Mapping[str, Any]], files: Path
) -> TemporaryDirectory[str]:
    """Create a folder in `files` with the rewritten documents, and links to the other files of `folder`."""
    files.mkdir(parents=True, exist_ok=True)
    result = TemporaryDirectory(prefix="policy-", dir=files)
    target = Path(result.name)
    for file in folder.iterdir():
        if file.name not in rewritten:
            (target / file.name).symlink_to(file.resolve())
    for name, document in rewritten.items():
        (target / name).write_text(json.dumps(document, indent=2))
    return result


def _rewritten_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the documents of the folder that version 4 would read differently, rewritten, by file name.

    Raises DataError as `open_readable_policy`.
    """
    conversions = {_CONFIG: convert_config, _TOKENIZER_CONFIG: convert_tokenizer_config}
    result = {}
    for name, convert in conversions.items():
        path = folder / name
        if not path.is_file():
            continue
        document = json.loads(path.read_text())
        try:
            converted = convert(document)
        except ValueError as error:
            raise DataError(
                f"spec.policy.model: {path}: {error}: transformers {transformers.__version__} of this "
                "environment cannot read it; set rollout.engine.torch or rollout.engine.vllm"
            ) from error
        if converted != document:
            result[name] = converted
    return result


def convert_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json in the form of version 4: the rotary embedding as `rope_theta`, `rope_scaling` and
    `partial_rotary_factor` instead of `rope_parameters`, in nested configs too.

    Raises ValueError for rotary parameters that differ by the type of layer, or that each architecture of
    version 4 reads in its own way.
    """
    result = {
        name: convert_config(value) if name.endswith("_config") and isinstance(value, Mapping) else value
        for name, value in config.items()
        if name != "rope_parameters"
    }
    rope = config.get("rope_parameters")
    if rope is None:
        return result
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise ValueError(f"rope_parameters differ by the type of layer ({', '.join(sorted(rope))})")
    kind = rope.get("rope_type", "default")
    if kind not in ("default", *_SCALINGS):
        raise ValueError(f"rope_parameters.rope_type is {kind!r}, not default, {', '.join(_SCALINGS)}")
    scaling = dict(rope)
    for name in ("rope_theta", "partial_rotary_factor"):
        if name in scaling:
            result[name] = scaling.pop(name)
    result["rope_scaling"] = None if kind == "default" else scaling
    return result


def convert_tokenizer_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer_config.json in the form of version 4: its name of the class of a tokenizer.json
    without further code, and further special tokens as `additional_special_tokens`.
    """
    result = dict(config)
    if result.get("tokenizer_class") == "TokenizersBackend":
        result["tokenizer_class"] = "PreTrainedTokenizerFast"
    extra = result.get("extra_special_tokens")
    if isinstance(extra, list):
        del result["extra_special_tokens"]
        result["additional_special_tokens"] = extra
    return result

"""Writes everything but the weights of an exported Hugging Face folder, for all training backends."""

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubealign_services.checkpoints.durable_files import fsync_path
from kubealign_services.training.files.hf_heads import HeadPooling, write_pooling

# Copied from the source folder to the exported one, in addition to weights and config.
_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model"),
    *("chat_template.jinja", "chat_template.json", "generation_config.json"),
)

# .result.k3_x9q2f, the name that mkdtemp makes, and .result.k3_x9q2f.old.
_TEMPORARY_NAME = re.compile(r"\.(?P<name>.+)\.[a-z0-9_]{8}(?P<old>\.old)?")


def export_config(
    config: Any, labels: int | None, scores: Sequence[str] = (), pooling: HeadPooling | None = None
) -> Any:
    """Return a copy of a model's config, adapted to the exported model.

    Args:
        labels: Number of outputs of a classifier's head; None for a language model.
        scores: Names of the labels; empty for the default names of transformers.
        pooling: Pooling of token scores, stored in a reward model's config.
    """
    copy = type(config).from_dict(config.to_dict())
    if labels is not None:
        copy.num_labels = labels
        if scores:
            copy.id2label = dict(enumerate(scores))
            copy.label2id = {name: index for index, name in enumerate(scores)}
        copy.pad_token_id = _padding_token(copy)
        if pooling is not None:
            write_pooling(copy, pooling)
    return copy


def _padding_token(config: Any) -> int:
    """Return a classifier's padding token: the config's padding token, else its end of sequence, else 0."""
    for token in (config.pad_token_id, config.eos_token_id):
        if isinstance(token, list) and token:
            return int(token[0])
        if isinstance(token, int):
            return token
    return 0


@contextmanager
def atomic_folder(directory: Path, source: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `directory` atomically when the block ends.

    Tokenizer files of `source` are copied in, and all files are synced to disk. An error leaves `directory`
    unchanged. Folders that a killed process has left are removed first, each as large as a model.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(directory)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        yield partial
        for name in _TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, partial / name)
        for path in [*partial.rglob("*"), partial]:
            fsync_path(path)
        partial.chmod(0o755)
        _swap_folders(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _remove_leftovers(directory: Path) -> None:
    """Delete the temporary folders of earlier exports; a folder that was moved aside and not replaced is
    moved back.
    """
    for path in list(directory.parent.iterdir()):
        match = _TEMPORARY_NAME.fullmatch(path.name)
        if match is None or match["name"] != directory.name or not path.is_dir():
            continue
        if match["old"] and not directory.exists():
            path.rename(directory)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _swap_folders(partial: Path, directory: Path) -> None:
    """Rename the new folder into place; an existing folder is moved aside first and removed last."""
    old = partial.with_name(f"{partial.name}.old")
    if directory.exists():
        directory.rename(old)
    partial.rename(directory)
    fsync_path(directory.parent)
    shutil.rmtree(old, ignore_errors=True)

"""A Hugging Face folder as every training backend writes it, but for its weights."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubealign_services.training.hf_folder_heads import POOLING
from kubealign_services.training.torch_backend.durable import to_disk

# What travels from the source folder to the exported one beside weights and config.
_COMPANIONS = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model"),
    *("chat_template.jinja", "chat_template.json", "generation_config.json"),
)


def exported_config(
    config: Any, count: int | None, scores: Sequence[str] = (), pooling: str | None = None
) -> Any:
    """A copy of a model's config for what is exported of it. count: outputs of a classifier's head, None for
    a language model. scores: the labels' names; empty: as transformers calls them."""
    copy = type(config).from_dict(config.to_dict())
    if count is not None:
        copy.num_labels = count
        if scores:
            copy.id2label = dict(enumerate(scores))
            copy.label2id = {name: index for index, name in enumerate(scores)}
        copy.pad_token_id = _padding(copy)
        if pooling is not None:
            setattr(copy, POOLING, pooling)
    return copy


def _padding(config: Any) -> int:
    """The token that a classifier takes for padding: the config's, else its end of sequence, else 0."""
    for token in (config.pad_token_id, config.eos_token_id):
        if isinstance(token, list) and token:
            return int(token[0])
        if isinstance(token, int):
            return token
    return 0


@contextmanager
def new_folder(directory: Path, source: Path) -> Iterator[Path]:
    """A folder to be filled, which then becomes `directory`, new or replaced whole, with the tokenizer's
    files of the source folder; on the disk when the block ends. An error leaves `directory` as it was."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        yield partial
        for name in _COMPANIONS:
            if (source / name).is_file():
                shutil.copyfile(source / name, partial / name)
        for path in [*partial.rglob("*"), partial]:
            to_disk(path)
        partial.chmod(0o755)
        _replace(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _replace(partial: Path, directory: Path) -> None:
    """Rename into place; what stood there is moved aside first and removed last."""
    old = partial.with_name(f"{partial.name}.old")
    if directory.exists():
        directory.rename(old)
    partial.rename(directory)
    to_disk(directory.parent)
    shutil.rmtree(old, ignore_errors=True)

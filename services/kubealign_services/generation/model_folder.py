"""A model's Hugging Face folder as engines read it: its configuration, and the ids that end responses."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, GenerationConfig, PreTrainedTokenizerBase

from kubealign_services.data.tokenization.end_of_turn import end_of_turn_id


def read_config(folder: Path) -> Any:
    """Read the folder's config.json."""
    return AutoConfig.from_pretrained(folder, local_files_only=True)


def end_tokens(folder: Path, config: Any, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids that end a response: those of generation_config.json, the tokenizer's end of sequence
    and the end of turn of its chat template, or that of config.json where none names one.

    Raises ValueError for an id of generation_config.json that is an ordinary piece of text: a model built
    from a configuration inherits its class's default, which would cut responses short.
    """
    stated: set[int] = set()
    if (folder / "generation_config.json").is_file():
        stated = _as_id_set(GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id)
    marked = set(tokenizer.all_special_ids) | set(getattr(tokenizer, "added_tokens_decoder", {}))
    ordinary = sorted(stated - marked)
    if ordinary and tokenizer.eos_token_id is not None:
        pieces = ", ".join(f"{i} ({tokenizer.convert_ids_to_tokens(i)!r})" for i in ordinary)
        raise ValueError(
            f"{folder}: generation_config.json, eos_token_id: {pieces} is no special token of the tokenizer, "
            f"whose end is {tokenizer.eos_token_id} ({tokenizer.eos_token!r}): write that one"
        )
    ends = stated | _as_id_set(tokenizer.eos_token_id) | _as_id_set(end_of_turn_id(tokenizer))
    return frozenset(ends or _as_id_set(config.get_text_config().eos_token_id))


def _as_id_set(value: int | list[int] | None) -> set[int]:
    if value is None:
        return set()
    return {value} if isinstance(value, int) else set(value)

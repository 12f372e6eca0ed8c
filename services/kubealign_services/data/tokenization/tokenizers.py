"""Tokenizers: loading from a folder, training on the job's data, and checks against models.

Batches are packed and never padded, so the padding side is irrelevant; a Hugging Face folder must name a
pad token all the same.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from kubealign_services.data.errors import DataError

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"

#: Class names that transformers writes for a tokenizer of tokenizer.json alone.
_FAST_ONLY_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")


def load_tokenizer(folder: Path, spec_path: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a Hugging Face folder.

    Raises DataError where none can be loaded, or it has no end-of-sequence token.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = _loader_class(folder).from_pretrained(
            folder, local_files_only=True
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise DataError(
            f"{spec_path}: {folder} holds no tokenizer that can be loaded: {_first_line(error)}"
        ) from error
    if tokenizer.eos_token_id is None:
        raise DataError(
            f"{spec_path}: the tokenizer in {folder} has no end-of-sequence token, so no response could end: "
            "set eos_token in its tokenizer_config.json"
        )
    return tokenizer


def _loader_class(folder: Path) -> Any:
    """Return the loader class.

    For a folder with a plain fast tokenizer, AutoTokenizer would still follow the model's type (Qwen2's,
    say) and add tokens and a normaliser.
    """
    try:
        class_name = json.loads((folder / "tokenizer_config.json").read_text()).get("tokenizer_class")
    except (OSError, ValueError):
        class_name = None
    return PreTrainedTokenizerFast if class_name in _FAST_ONLY_CLASSES else AutoTokenizer


def ensure_pad_token(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Use the end-of-sequence token as pad token where there is none; return True if it was set."""
    if tokenizer.pad_token_id is not None:
        return False
    tokenizer.pad_token = tokenizer.eos_token
    return True


def train_character_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train a tokenizer with one token per character (code point), after <pad>, <eos> and <unk>; ids in
    character order.
    """
    characters = sorted({character for text in texts for character in text})
    if not characters:
        raise DataError("a character tokenizer needs characters: the texts are empty")
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, UNKNOWN, *characters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    tokenizer.decoder = decoders.Fuse()
    return _wrap_tokenizer(tokenizer, unk_token=UNKNOWN)


def train_bpe_tokenizer(texts: Iterable[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Train byte-level byte-pair encoding (Radford et al. 2019) with <pad>, <eos>, the 256 bytes and learned
    merges.

    At most `vocabulary_size` tokens; fewer where the texts do not provide that many merges. No text is
    unknown.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _wrap_tokenizer(tokenizer)


def min_vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the largest token id plus one."""
    ids: dict[str, int] = tokenizer.get_vocab()
    return max(ids.values()) + 1


def check_vocabulary(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, spec_path: str) -> None:
    """Raise DataError where the tokenizer has ids beyond the model's embeddings.

    More embeddings than ids are allowed.
    """
    size = config.get_text_config().vocab_size
    end = min_vocabulary_size(tokenizer)
    if end > size:
        raise DataError(
            f"{spec_path}: the tokenizer has ids up to {end - 1}, the model's vocabulary has {size} entries "
            f"(0 to {size - 1}): they do not belong together"
        )


def differing_tokens(tokenizer: PreTrainedTokenizerBase, policy: PreTrainedTokenizerBase) -> list[str]:
    """Return the tokens that have another id in the other tokenizer, or none, in order."""
    mine, theirs = tokenizer.get_vocab(), policy.get_vocab()
    return sorted(token for token in mine.keys() | theirs.keys() if mine.get(token) != theirs.get(token))


def check_same_vocabulary(
    tokenizer: PreTrainedTokenizerBase, policy: PreTrainedTokenizerBase, spec_path: str, remedy: str = ""
) -> None:
    """Raise DataError unless both tokenizers have the same ids: the models share the policy's tokens.

    Args:
        remedy: End of the message.
    """
    differing = differing_tokens(tokenizer, policy)
    if differing:
        mine, theirs = tokenizer.get_vocab(), policy.get_vocab()
        raise DataError(
            f"{spec_path}: its tokenizer is not the policy's: {len(differing)} of "
            f"{len(mine.keys() | theirs.keys())} tokens differ, such as {differing[0]!r} "
            f"({mine.get(differing[0])} here, {theirs.get(differing[0])} there); "
            f"all models of a job but reward models read the policy's tokens{remedy}"
        )


def prefix_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids that the tokenizer puts before a text, such as a beginning-of-sequence token; often
    none.
    """
    with_special = list(tokenizer("a")["input_ids"])
    plain = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    if not plain:
        return [token for token in with_special if token == tokenizer.bos_token_id]
    for start in range(len(with_special) - len(plain) + 1):
        if with_special[start : start + len(plain)] == plain:
            return with_special[:start]
    return []


def decode_ids(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int]) -> str:
    """Return the text of ids with its special tokens, as every rollout engine decodes a response.

    Special tokens stay: a reward must see what was sampled, and a stop string may be a special token.
    """
    return str(tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _wrap_tokenizer(tokenizer: Tokenizer, **special: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
        **special,
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__

"""Tokenizers: loaded from a folder, or trained on the job's data; and whether they fit a model.

Nothing is ever padded (batches are packed), so padding on the left or on the right is not a question here;
a Hugging Face folder must name a pad token all the same.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from kubealign_services.data.errors import DataError

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"

#: What transformers writes for a tokenizer that is tokenizer.json and nothing else.
_PLAIN = ("PreTrainedTokenizerFast", "TokenizersBackend")


def load_tokenizer(folder: Path, place: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hugging Face folder. Raises DataError where there is none that can be loaded,
    or it has no end-of-sequence token."""
    try:
        tokenizer: PreTrainedTokenizerBase = _loader(folder).from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise DataError(
            f"{place}: {folder} holds no tokenizer that can be loaded: {_first_line(error)}"
        ) from error
    if tokenizer.eos_token_id is None:
        raise DataError(
            f"{place}: the tokenizer in {folder} has no end-of-sequence token, so no response could end: "
            "set eos_token in its tokenizer_config.json"
        )
    return tokenizer


def _loader(folder: Path) -> Any:
    """Who loads it. Where the folder says that it holds a plain fast tokenizer, AutoTokenizer would still
    go by the model's type (Qwen2's, say) and add tokens and a normaliser of its own."""
    try:
        said = json.loads((folder / "tokenizer_config.json").read_text()).get("tokenizer_class")
    except (OSError, ValueError):
        said = None
    return PreTrainedTokenizerFast if said in _PLAIN else AutoTokenizer


def ensure_pad_token(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Let the end-of-sequence token stand for the pad token where there is none. True: it does now."""
    if tokenizer.pad_token_id is not None:
        return False
    tokenizer.pad_token = tokenizer.eos_token
    return True


def train_characters(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """One token for each character (code point) of the texts, after <pad>, <eos> and <unk>; ids in the
    characters' order."""
    characters = sorted({character for text in texts for character in text})
    if not characters:
        raise DataError("there are no characters to make a tokenizer of: the texts are empty")
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, UNKNOWN, *characters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    tokenizer.decoder = decoders.Fuse()
    return _for_transformers(tokenizer, unk_token=UNKNOWN)


def train_byte_level_bpe(texts: Iterable[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Byte-level byte-pair encoding (Radford et al. 2019) with <pad>, <eos>, the 256 bytes and merges
    learned from the texts.

    At most `vocabulary_size` tokens; fewer where the texts do not hold that many merges. Nothing is unknown
    to it.
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
    return _for_transformers(tokenizer)


def vocabulary_end(tokenizer: PreTrainedTokenizerBase) -> int:
    """One more than the largest id that the tokenizer can give."""
    return max(tokenizer.get_vocab().values()) + 1


def check_vocabulary(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, place: str) -> None:
    """Raise DataError where the tokenizer has ids beyond the model's embeddings. More embeddings than
    ids are fine."""
    size = config.get_text_config().vocab_size
    end = vocabulary_end(tokenizer)
    if end > size:
        raise DataError(
            f"{place}: the tokenizer has ids up to {end - 1}, the model's vocabulary has {size} entries "
            f"(0 to {size - 1}): they do not belong together"
        )


def check_same_vocabulary(
    tokenizer: PreTrainedTokenizerBase, policy: PreTrainedTokenizerBase, place: str
) -> None:
    """Raise DataError unless both give the same text the same ids: models of one job are handed the
    policy's tokens."""
    mine, theirs = tokenizer.get_vocab(), policy.get_vocab()
    tokens = mine.keys() | theirs.keys()
    differing = sorted(token for token in tokens if mine.get(token) != theirs.get(token))
    if differing:
        raise DataError(
            f"{place}: its tokenizer is not the policy's: {len(differing)} of {len(tokens)} tokens differ, "
            f"such as {differing[0]!r} ({mine.get(differing[0])} here, {theirs.get(differing[0])} there); "
            "all models of a job read the policy's tokens"
        )


def begins_with(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids that the tokenizer itself puts before a text, such as a beginning-of-sequence token; often
    none."""
    with_special = list(tokenizer("a")["input_ids"])
    plain = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    if not plain:
        return [token for token in with_special if token == tokenizer.bos_token_id]
    for start in range(len(with_special) - len(plain) + 1):
        if with_special[start : start + len(plain)] == plain:
            return with_special[:start]
    return []


def _for_transformers(tokenizer: Tokenizer, **special: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
        **special,
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__

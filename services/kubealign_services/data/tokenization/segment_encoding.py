"""Tokenisation of texts that are cut into segments: prompt and response, or context and turns."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase


def encode_segments(
    tokenizer: PreTrainedTokenizerBase, sequences: Sequence[Sequence[str]]
) -> list[list[list[int]]]:
    """Return the ids of each segment of each sequence.

    The ids of a sequence are those of its text as a whole, cut where the segments meet: a SentencePiece
    tokenizer would otherwise begin every segment with a space. Where one token of the whole text belongs to
    two segments, the segments are encoded one by one: at sampling, the policy continues the prompt's own
    tokens.
    """
    segment_ids = iter(_encode_texts(tokenizer, [text for segments in sequences for text in segments]))
    whole_ids = iter(
        _encode_texts(tokenizer, ["".join(segments) for segments in sequences if len(segments) > 1])
    )
    result = []
    for segments in sequences:
        apart = [next(segment_ids) for _ in segments]
        sequence_ids = next(whole_ids) if len(segments) > 1 else apart[0]
        if sequence_ids != [token for ids in apart for token in ids]:
            apart = _cut(tokenizer, sequence_ids, segments) or apart
        result.append(apart)
    return result


def _cut(
    tokenizer: PreTrainedTokenizerBase, whole: Sequence[int], segments: Sequence[str]
) -> list[list[int]] | None:
    """Cut the ids of the whole text where the segments meet; None where a token belongs to two segments."""
    beginnings = ["".join(segments[: end + 1]) for end in range(len(segments))]
    result: list[list[int]] = []
    start = 0
    for ids in _encode_texts(tokenizer, beginnings):
        if len(ids) < start or ids != list(whole[: len(ids)]):
            return None
        result.append(list(whole[start : len(ids)]))
        start = len(ids)
    return result


def _encode_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of each text, without the tokens that the tokenizer adds around a text."""
    if not texts:
        return []
    encoded = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
    return [list(ids) for ids in encoded["input_ids"]]

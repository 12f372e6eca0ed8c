"""Tiny models made from configurations, a byte-level tokenizer, and engines over them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from kubealign.spec.sections import engines as engine_spec
from kubealign_services.generation.contract import GeneratedSample, GenerationRequest
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine

# Vocabulary sizes of the tokenizer and of the models, which have unused rows as real models do.
TOKENS, VOCABULARY = 272, 276
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
SPECIALS: dict[str, Any] = {"eos_token_id": 270, "pad_token_id": 271, "bos_token_id": None}
GATED: dict[str, Any] = {
    **SIZES,
    **SPECIALS,
    "intermediate_size": 48,
    "max_position_embeddings": 96,
    "initializer_range": 0.25,
}
CONFIGURATIONS: dict[str, Callable[[], Any]] = {
    "llama-gqa": lambda: LlamaConfig(**GATED, num_key_value_heads=2),
    "llama-tied": lambda: LlamaConfig(**GATED, num_key_value_heads=1, tie_word_embeddings=True),
    "qwen2": lambda: Qwen2Config(**GATED, num_key_value_heads=2),
    "mistral-window": lambda: MistralConfig(**GATED, num_key_value_heads=2, sliding_window=5),
    "qwen2-some-windows": lambda: Qwen2Config(
        **GATED,
        num_key_value_heads=4,
        use_sliding_window=True,
        sliding_window=4,
        layer_types=["full_attention", "sliding_attention"],
    ),
    "gpt-neox": lambda: GPTNeoXConfig(
        **{key: value for key, value in GATED.items() if key != "initializer_range"}, initializer_range=0.25
    ),
    "gpt2": lambda: GPT2Config(
        scale_attn_by_inverse_layer_idx=True,
        vocab_size=VOCABULARY,
        n_positions=96,
        n_embd=32,
        n_layer=2,
        n_head=4,
        initializer_range=0.25,
        **SPECIALS,
    ),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: models this small are slower with more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: ids 0 to 255 are bytes in the order of `byte_ids`, then a few
    merges (one of a full stop and the first byte of the euro sign), then <eos> 270
    and <pad> 271."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, "EN", "END", "ab", "abc", ".â", *(f"<{i}>" for i in range(261, 270))]
    merges = [("E", "N"), ("EN", "D"), ("a", "b"), ("ab", "c"), (".", "â")]
    raw = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    make: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast
    byte_tokenizer = make(
        tokenizer_object=raw,
        pad_token=AddedToken("<pad>", special=True),
        eos_token=AddedToken("<eos>", special=True),
    )
    assert (byte_tokenizer.eos_token_id, byte_tokenizer.pad_token_id, len(byte_tokenizer)) == (
        270,
        271,
        TOKENS,
    )
    return byte_tokenizer


@pytest.fixture(scope="session")
def byte_ids(tokenizer: PreTrainedTokenizerFast) -> Callable[[bytes], list[int]]:
    """Return a function that maps bytes to one id each, without merges."""
    by_byte = {bytes([b]): i for b, i in _byte_table(tokenizer).items()}
    return lambda data: [by_byte[bytes([b])] for b in data]


def _byte_table(tokenizer: PreTrainedTokenizerFast) -> dict[int, int]:
    # The byte-level alphabet of GPT-2: printable Latin-1 bytes stand for themselves, the others for code
    # points from 256 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    letters = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    vocabulary = tokenizer.get_vocab()
    return {b: vocabulary[letter] for b, letter in letters.items()}


class Zoo:
    """A folder and reference weights for each configuration, created once."""

    def __init__(self, root: Path, tokenizer: PreTrainedTokenizerFast) -> None:
        self._root = root
        self._tokenizer = tokenizer
        self._references: dict[str, Any] = {}

    def folder(self, name: str) -> Path:
        folder = self._root / name
        if not folder.is_dir():
            config = CONFIGURATIONS[name]()
            config.save_pretrained(folder)
            self._tokenizer.save_pretrained(folder)
        return folder

    def reference(self, name: str) -> Any:
        """Return the plain transformers model, float32, with random weights from a fixed seed."""
        if name not in self._references:
            torch.manual_seed(7)
            config = CONFIGURATIONS[name]()
            make: Callable[..., Any] = AutoModelForCausalLM.from_config
            # The first caller may be a test in inference mode; later tests copy other weights into the model.
            with torch.inference_mode(False):
                self._references[name] = make(config, attn_implementation="eager").eval()
        return self._references[name]

    def engine(
        self, name: str, max_sequences: int = 8, prefill_tokens: int = 64, pages: int | None = None
    ) -> TorchRolloutEngine:
        """Return an engine with the reference's weights as version 1.

        Args:
            pages: Cache pages; None: unlimited.
        """
        engine = TorchRolloutEngine.create(
            self.folder(name),
            engine_spec.TorchEngineSpec(
                max_sequences=max_sequences,
                prefill_tokens=prefill_tokens,
                cache_gib=None if pages is None else pages * self._page_bytes(name) / 2**30,
            ),
        )
        engine.refit(self.reference(name).named_parameters(), version=1)
        return engine

    def _page_bytes(self, name: str) -> int:
        config = CONFIGURATIONS[name]()
        heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        width = config.hidden_size // config.num_attention_heads
        return int(2 * config.num_hidden_layers * 16 * heads * width * 4)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> Zoo:
    return Zoo(tmp_path_factory.mktemp("models"), tokenizer)


Run = Callable[..., dict[tuple[str, int], GeneratedSample]]


@pytest.fixture(scope="session")
def run_all() -> Run:
    """Add the requests and step until idle. Return samples by (request id, index). Fails instead of stepping
    for ever.
    """

    def run(
        engine: TorchRolloutEngine, *requests: GenerationRequest, steps: int = 2000
    ) -> dict[tuple[str, int], GeneratedSample]:
        for request in requests:
            engine.add(request)
        done: dict[tuple[str, int], GeneratedSample] = {}
        for _ in range(steps):
            load = engine.load()
            if not load.running and not load.waiting:
                return done
            for sample in engine.step():
                assert (sample.request_id, sample.sample) not in done
                done[sample.request_id, sample.sample] = sample
        raise AssertionError(f"not idle after {steps} steps: {engine.load()}")

    return run


@pytest.fixture
def successor_engine(zoo: Zoo) -> Callable[[dict[int, int]], TorchRolloutEngine]:
    """Return an engine whose greedy response follows a map from each token to the next: embeddings are
    one-hot, attention and MLP add nothing, and the head holds the map.
    """

    def make(successor: dict[int, int]) -> TorchRolloutEngine:
        folder = zoo.folder("llama-gqa").with_name("successor")
        config = LlamaConfig(
            **{**GATED, "hidden_size": 288, "num_attention_heads": 4, "num_hidden_layers": 1}
        )
        config.save_pretrained(folder)
        zoo._tokenizer.save_pretrained(folder)
        engine = TorchRolloutEngine.create(folder, engine_spec.TorchEngineSpec(max_sequences=4))
        model: Any = AutoModelForCausalLM.from_config(config)
        weights = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
        weights["model.embed_tokens.weight"][:, :VOCABULARY] = torch.eye(VOCABULARY)
        weights["model.norm.weight"].fill_(1)
        for token, follower in successor.items():
            weights["lm_head.weight"][follower, token] = 1
        engine.refit(weights.items(), version=1)
        return engine

    return make

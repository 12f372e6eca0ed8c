"""The workload of all sides of a comparison: model, prompts, reward and optimiser settings. Imports nothing
of kubealign, so that it can be loaded in a peer's environment."""

import json
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tests.bench.lengths import tailed
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

MODEL, REWARD_MODEL, PROMPTS, WORKLOAD = "model", "reward_model", "prompts.jsonl", "workload.json"
REWARD, WORKFLOW = "reward.py", "workflow.py"

#: Called by both sides: kubealign passes prompts and responses, TRL prompts and completions.
_REWARD_SOURCE = '''"""The share of a response's words whose number is even."""


def reward(prompts, responses=None, completions=None, **columns):
    return [_even_share(text.split()) for text in (responses if responses is not None else completions)]


def _even_share(words):
    return sum(word[-1] in "02468" for word in words) / max(1, len(words))
'''

#: Relies on the samples of a prompt starting in order.
_WORKFLOW_SOURCE = '''"""Each response has the length that its prompt's row says."""

from collections import Counter

_begun = Counter()


async def workflow(episode):
    lengths = episode.columns["lengths"]
    index = _begun[episode.prompt] % len(lengths)
    _begun[episode.prompt] += 1
    await episode.generate(max_tokens=lengths[index])
'''


@dataclass(frozen=True)
class Workload:
    """Shape of a Llama, and the batch of a step. Lengths are in tokens.

    longest: longest response of a step, whose mean is then `response_tokens`; None: all responses have
    `response_tokens`. method: name of the algorithm in a job's spec."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    vocabulary: int
    prompts_per_step: int = 16
    samples_per_prompt: int = 4
    prompt_tokens: int = 32
    response_tokens: int = 64
    longest: int | None = None
    method: str = "rloo"
    learning_rate: float = 1e-5
    max_staleness: int = 0
    seed: int = 1

    @property
    def sequences(self) -> int:
        return self.prompts_per_step * self.samples_per_prompt

    @property
    def tokens(self) -> int:
        """Tokens of one step, prompts and responses."""
        return self.sequences * (self.prompt_tokens + self.response_tokens)

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest response."""
        return self.longest or self.response_tokens

    def lengths(self, step: int) -> list[int]:
        """Return the lengths of a step's responses, prompt by prompt."""
        if self.longest is None:
            return [self.response_tokens] * self.sequences
        return tailed(step, self.sequences, self.response_tokens, self.longest, self.seed)

    def write(self, folder: Path, steps: int) -> int:
        """Write model, tokenizer, prompts for `steps` steps, reward and this workload to the folder. Return
        the number of weights of the model."""
        folder.mkdir(parents=True)
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        torch.manual_seed(self.seed)
        model = LlamaForCausalLM(self._config())
        model.save_pretrained(folder / MODEL)
        self._tokenizer().save_pretrained(folder / MODEL)
        if self.method == "ppo":
            judge = LlamaForSequenceClassification(self._config(num_labels=1))
            judge.save_pretrained(folder / REWARD_MODEL)
            self._tokenizer().save_pretrained(folder / REWARD_MODEL)
        (folder / PROMPTS).write_text("".join(json.dumps(row) + "\n" for row in self.rows(steps)))
        (folder / REWARD).write_text(_REWARD_SOURCE)
        (folder / WORKFLOW).write_text(_WORKFLOW_SOURCE)
        (folder / WORKLOAD).write_text(json.dumps(asdict(self)))
        return sum(parameter.numel() for parameter in model.parameters())

    def rows(self, steps: int) -> list[dict[str, Any]]:
        """Return the prompts in the order of the steps, each with the lengths of its samples."""
        draw, rows, each = random.Random(self.seed), [], self.samples_per_prompt
        for step in range(steps):
            lengths = self.lengths(step)
            for prompt in range(self.prompts_per_step):
                mine = lengths[prompt * each : (prompt + 1) * each]
                rows.append({"prompt": self.words(draw, self.prompt_tokens), "lengths": mine})
        return rows

    def words(self, draw: random.Random, tokens: int) -> str:
        """Return a random text of `tokens` tokens."""
        return " ".join(f"w{draw.randrange(self.vocabulary - 3)}" for _ in range(tokens))

    @staticmethod
    def read(folder: Path) -> "Workload":
        return Workload(**json.loads((folder / WORKLOAD).read_text()))

    def doing(self, **changes: Any) -> "Workload":
        """Return a copy with these changes."""
        return replace(self, **changes)

    def _config(self, **more: Any) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            max_position_embeddings=2 * (self.prompt_tokens + self.most_tokens),
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=1,
            pad_token_id=0,
            **more,
        )

    def _tokenizer(self) -> PreTrainedTokenizerFast:
        """Return a tokenizer with one token per word, so that the length of a text is known."""
        words = ["<pad>", "<eos>", "<unk>", *(f"w{number}" for number in range(self.vocabulary - 3))]
        tokenizer = Tokenizer(
            models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>")
        )
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
        )


#: Checks in seconds that the benchmark itself works.
TINY = Workload(
    hidden=32, intermediate=64, layers=2, heads=2, vocabulary=256, prompts_per_step=4, response_tokens=12
)
#: 6 million weights.
QUICK = Workload(hidden=256, intermediate=704, layers=6, heads=8, vocabulary=4096)
#: 25 million weights.
FULL = Workload(hidden=512, intermediate=1536, layers=6, heads=8, vocabulary=8192)

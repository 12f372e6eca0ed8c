"""The work that both sides do: one model, one set of prompts, one reward, one optimiser's numbers."""

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

MODEL, PROMPTS, REWARD, WORKLOAD = "model", "prompts.jsonl", "reward.py", "workload.json"

#: Both sides call it: kubealign with the names prompts and responses, TRL with prompts and completions.
_REWARD_SOURCE = '''"""The share of a response's words whose number is even."""


def reward(prompts, responses=None, completions=None, **columns):
    return [_even_share(text.split()) for text in (responses if responses is not None else completions)]


def _even_share(words):
    return sum(word[-1] in "02468" for word in words) / max(1, len(words))
'''


@dataclass(frozen=True)
class Workload:
    """A Llama of this shape, and the batch of a step. Lengths in tokens."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    vocabulary: int
    prompts_per_step: int = 16
    samples_per_prompt: int = 4
    prompt_tokens: int = 32
    response_tokens: int = 64
    learning_rate: float = 1e-5
    seed: int = 1

    @property
    def sequences(self) -> int:
        return self.prompts_per_step * self.samples_per_prompt

    @property
    def tokens(self) -> int:
        """Of one step, prompts and responses."""
        return self.sequences * (self.prompt_tokens + self.response_tokens)

    def write(self, folder: Path, steps: int) -> int:
        """Model, tokenizer, prompts for `steps` steps, reward and the numbers themselves, in this folder.
        Returns how many weights the model has."""
        folder.mkdir(parents=True)
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        model = self._model()
        model.save_pretrained(folder / MODEL)
        self._tokenizer().save_pretrained(folder / MODEL)
        draw = random.Random(self.seed)
        rows = ({"prompt": self._prompt(draw)} for _ in range(steps * self.prompts_per_step))
        (folder / PROMPTS).write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / REWARD).write_text(_REWARD_SOURCE)
        (folder / WORKLOAD).write_text(json.dumps(asdict(self)))
        return sum(parameter.numel() for parameter in model.parameters())

    @staticmethod
    def read(folder: Path) -> "Workload":
        return Workload(**json.loads((folder / WORKLOAD).read_text()))

    def job(self, folder: Path, name: str, steps: int) -> dict[str, Any]:
        """The AlignmentJob that does it."""
        return {
            "apiVersion": "kubealign.dev/v1alpha1",
            "kind": "AlignmentJob",
            "metadata": {"name": name},
            "spec": {
                "seed": self.seed,
                "maxSteps": steps,
                "algorithm": {
                    "rloo": {
                        "promptsPerStep": self.prompts_per_step,
                        "samplesPerPrompt": self.samples_per_prompt,
                        "kl": {"fixed": {"coefficient": 0.0}},
                    }
                },
                "policy": {"model": {"path": str(folder / MODEL)}},
                "data": {"prompts": {"source": {"path": str(folder / PROMPTS)}}},
                "trainer": {"optimizer": {"adamW": {"learningRate": self.learning_rate}}},
                "rewards": [
                    {"name": "even", "function": {"file": {"path": str(folder / REWARD), "name": "reward"}}}
                ],
                "rollout": {
                    "engine": {"torch": {"maxSequences": self.sequences}},
                    "sampling": {"minTokens": self.response_tokens, "maxTokens": self.response_tokens},
                },
                "checkpoint": {"everySteps": steps + 1},
            },
        }

    def _model(self) -> LlamaForCausalLM:
        torch.manual_seed(self.seed)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=self.vocabulary,
                hidden_size=self.hidden,
                intermediate_size=self.intermediate,
                num_hidden_layers=self.layers,
                num_attention_heads=self.heads,
                num_key_value_heads=self.heads,
                max_position_embeddings=2 * (self.prompt_tokens + self.response_tokens),
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=1,
                pad_token_id=0,
            )
        )

    def _tokenizer(self) -> PreTrainedTokenizerFast:
        """One token a word, so that a prompt's length is known."""
        words = ["<pad>", "<eos>", "<unk>", *(f"w{number}" for number in range(self.vocabulary - 3))]
        tokenizer = Tokenizer(
            models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>")
        )
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
        )

    def _prompt(self, draw: random.Random) -> str:
        return " ".join(f"w{draw.randrange(self.vocabulary - 3)}" for _ in range(self.prompt_tokens))


#: 6 million weights: the whole comparison takes minutes on two cores.
QUICK = Workload(hidden=256, intermediate=704, layers=6, heads=8, vocabulary=4096)
#: 25 million weights.
FULL = Workload(hidden=512, intermediate=1536, layers=6, heads=8, vocabulary=8192)

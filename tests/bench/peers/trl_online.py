"""Runs TRL's RLOO and GRPO on a workload: `python -m tests.bench.peers.trl_online WAY FOLDER STEPS RESULT`.

WAY: default (one micro-batch, padded generation, as users run TRL), or best (small micro-batches, and
transformers' continuous batching). Each step's seconds by phase are written to RESULT as JSON lines, with the
names of kubealign's metrics.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tests.bench.peers.forced import ending_at, ending_at_in_batch
from tests.bench.peers.generation import continuous_settings
from tests.bench.peers.reward_file import reward
from tests.bench.peers.trl_settings import common_settings
from tests.bench.workload import MODEL, PROMPTS, Workload
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_config import RLOOConfig
from trl.trainer.rloo_trainer import RLOOTrainer

from kubealign.local.processes.cpu import available_cores

#: Sequences of a micro-batch with the best settings.
MICROBATCH = 4


class Measured:
    """Mixin of a trainer that times its phases and forces the response lengths of the rows; the computation
    is the trainer's own."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.seconds: dict[str, float] = {}
        self.lengths: list[int] = []
        super().__init__(*arguments, **keywords)

    def _timed(self, phase: str, action: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        begun = time.perf_counter()
        try:
            return action(*arguments, **keywords)
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - begun

    def _prepare_inputs(self, *arguments: Any, **keywords: Any) -> Any:
        """Time everything before the forward pass of the loss."""
        return self._timed("prepare", super()._prepare_inputs, *arguments, **keywords)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        # The samples of a prompt are adjacent.
        self.lengths = [row["lengths"][index % len(row["lengths"])] for index, row in enumerate(inputs)]
        return super()._generate_and_score_completions(inputs)

    def _generate(self, *arguments: Any, **keywords: Any) -> Any:
        return self._timed("generate", super()._generate, *arguments, **keywords)

    def _generate_single_turn(self, prompt_ids: Any, *arguments: Any, **keywords: Any) -> Any:
        make = super()._generate_single_turn
        if self.args.use_transformers_continuous_batching:
            with ending_at_in_batch(self.lengths):
                output = make(prompt_ids, *arguments, **keywords)
        else:
            model = self.accelerator.unwrap_model(self.model_wrapped)
            with ending_at(model, self.lengths, max(map(len, prompt_ids)), self._tokenizer.eos_token_id):
                output = make(prompt_ids, *arguments, **keywords)
        tokens = output[0] if isinstance(output, tuple) else output
        if [len(each) for each in tokens] != self.lengths:
            raise RuntimeError(f"TRL's responses have {[len(each) for each in tokens]} tokens")
        return output

    def _calculate_rewards(self, *arguments: Any, **keywords: Any) -> Any:
        return self._timed("score", super()._calculate_rewards, *arguments, **keywords)

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **keywords: Any) -> Any:
        action = super()._get_per_token_logps_and_entropies
        if torch.is_grad_enabled():
            return action(*arguments, **keywords)
        return self._timed("logprobs", action, *arguments, **keywords)


class MeasuredRLOO(Measured, RLOOTrainer):
    pass


class MeasuredGRPO(Measured, GRPOTrainer):
    pass


class StepSeconds(TrainerCallback):
    """Writes a line for each step."""

    def __init__(self, seconds: dict[str, float], tokens: int, result: Path) -> None:
        self._seconds, self._tokens, self._result = seconds, tokens, result
        self._begun = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._seconds.clear()
        self._begun = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = time.perf_counter() - self._begun
        seconds = dict(self._seconds)
        # The rest is forward, backward and the optimiser.
        seconds["train"] = step - seconds.pop("prepare")
        line = {"step": state.global_step, "time": time.time(), "batch/tokens": self._tokens}
        line |= {f"seconds/{name}": value for name, value in (seconds | {"step": step}).items()}
        with self._result.open("a") as file:
            file.write(json.dumps(line) + "\n")


def settings(workload: Workload, folder: Path, steps: int, way: str) -> dict[str, Any]:
    """Return the job's parameters as TRL's arguments. Features that kubealign lacks are turned off."""
    micro = min(MICROBATCH, workload.sequences) if way == "best" else workload.sequences
    arguments = common_settings(folder / "trl", workload.seed, workload.learning_rate)
    arguments |= {
        "max_steps": steps,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": workload.sequences // micro,
        "num_generations": workload.samples_per_prompt,
        "num_iterations": 1,
        "max_completion_length": workload.most_tokens,
        "temperature": 1.0,
        "top_k": 0,
        "beta": 0.0,
        "shuffle_dataset": False,
        "logging_steps": 1,
    }
    if way == "best":
        longest = [max(workload.lengths(step), default=1) for step in range(steps)]
        lengths = workload.lengths(longest.index(max(longest)))
        arguments["use_transformers_continuous_batching"] = True
        arguments["transformers_continuous_batching_config"] = continuous_settings(lengths)
    if workload.method == "grpo":
        arguments["loss_type"] = "grpo"
    return arguments


def main(way: str, folder: Path, steps: int, result: Path) -> None:
    workload = Workload.read(folder)
    kind, config = {"rloo": (MeasuredRLOO, RLOOConfig), "grpo": (MeasuredGRPO, GRPOConfig)}[workload.method]
    trainer = kind(
        model=LlamaForCausalLM.from_pretrained(folder / MODEL, dtype=torch.float32),
        reward_funcs=reward(folder),
        args=config(**settings(workload, folder, steps, way)),
        train_dataset=Dataset.from_list(
            [json.loads(line) for line in (folder / PROMPTS).read_text().splitlines()]
        ),
        processing_class=PreTrainedTokenizerFast.from_pretrained(folder / MODEL),
    )
    # By default accelerate uses one thread for each core that it believes physical.
    if torch.get_num_threads() != available_cores():
        raise RuntimeError(f"TRL would compute with {torch.get_num_threads()} of {available_cores()} cores")
    trainer.add_callback(StepSeconds(trainer.seconds, workload.tokens, result))
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))

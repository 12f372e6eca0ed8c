"""TRL's RLOOTrainer on the workload: `python -m tests.bench.trl_side FOLDER STEPS RESULT`.

Each step's seconds by phase go to RESULT as JSON lines, in the words that kubealign's metrics use.
"""

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tests.bench.workload import MODEL, PROMPTS, REWARD, Workload
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl.trainer.rloo_config import RLOOConfig
from trl.trainer.rloo_trainer import RLOOTrainer

from kubealign.local.threads import available_cores


class TimedRLOO(RLOOTrainer):
    """The trainer, with its phases timed; what it computes is its own."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.seconds: dict[str, float] = {}
        super().__init__(*arguments, **keywords)

    def _timed(self, phase: str, action: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        begun = time.perf_counter()
        try:
            return action(*arguments, **keywords)
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - begun

    def _prepare_inputs(self, *arguments: Any, **keywords: Any) -> Any:
        """All that comes before the forward pass of the loss."""
        return self._timed("prepare", super()._prepare_inputs, *arguments, **keywords)

    def _generate(self, *arguments: Any, **keywords: Any) -> Any:
        return self._timed("generate", super()._generate, *arguments, **keywords)

    def _calculate_rewards(self, *arguments: Any, **keywords: Any) -> Any:
        return self._timed("score", super()._calculate_rewards, *arguments, **keywords)

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **keywords: Any) -> Any:
        action = super()._get_per_token_logps_and_entropies
        if torch.is_grad_enabled():
            return action(*arguments, **keywords)
        return self._timed("logprobs", action, *arguments, **keywords)


class StepSeconds(TrainerCallback):
    """Writes a line for each step."""

    def __init__(self, trainer: TimedRLOO, tokens: int, result: Path) -> None:
        self._trainer = trainer
        self._tokens = tokens
        self._result = result
        self._begun = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._trainer.seconds.clear()
        self._begun = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = time.perf_counter() - self._begun
        seconds = dict(self._trainer.seconds)
        # What is not preparation is forward, backward and the optimiser.
        seconds["train"] = step - seconds.pop("prepare")
        line = {"step": state.global_step, "time": time.time(), "batch/tokens": self._tokens}
        line |= {f"seconds/{name}": value for name, value in (seconds | {"step": step}).items()}
        with self._result.open("a") as file:
            file.write(json.dumps(line) + "\n")


def config(workload: Workload, folder: Path, steps: int) -> RLOOConfig:
    """The job's numbers in TRL's words. What kubealign does not do is turned off."""
    return RLOOConfig(
        output_dir=str(folder / "trl"),
        seed=workload.seed,
        max_steps=steps,
        per_device_train_batch_size=workload.sequences,
        gradient_accumulation_steps=1,
        num_generations=workload.samples_per_prompt,
        num_iterations=1,
        max_completion_length=workload.response_tokens,
        generation_kwargs={"min_new_tokens": workload.response_tokens},
        temperature=1.0,
        beta=0.0,
        learning_rate=workload.learning_rate,
        lr_scheduler_type="constant",
        adam_beta1=0.9,
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        logging_steps=1,
        disable_tqdm=True,
    )


def main(folder: Path, steps: int, result: Path) -> None:
    workload = Workload.read(folder)
    trainer = TimedRLOO(
        model=LlamaForCausalLM.from_pretrained(folder / MODEL, dtype=torch.float32),
        reward_funcs=_reward(folder),
        args=config(workload, folder, steps),
        train_dataset=Dataset.from_list(
            [json.loads(line) for line in (folder / PROMPTS).read_text().splitlines()]
        ),
        processing_class=PreTrainedTokenizerFast.from_pretrained(folder / MODEL),
    )
    if torch.get_num_threads() != available_cores():
        raise RuntimeError(f"TRL would compute with {torch.get_num_threads()} of {available_cores()} cores")
    trainer.add_callback(StepSeconds(trainer, workload.tokens, result))
    trainer.train()
    lengths = [
        entry["completions/mean_length"]
        for entry in trainer.state.log_history
        if "completions/mean_length" in entry
    ]
    if any(length != workload.response_tokens for length in lengths):
        raise RuntimeError(f"TRL's responses have {lengths} tokens, not {workload.response_tokens}")


def _reward(folder: Path) -> Callable[..., list[float]]:
    spec = importlib.util.spec_from_file_location("bench_reward", folder / REWARD)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., list[float]] = module.reward
    return function


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))

"""Runs TRL's SFT and DPO on rows of ragged lengths: `python -m tests.bench.peers.trl_rows WAY ROWS_PER_STEP
FOLDER STEPS RESULT`.

WAY: packed (sft: best-fit packing, which is padding-free), padded (small micro-batches; sft: rows of similar
length), whole (one micro-batch, padded). Each step's seconds and tokens are written to RESULT as JSON lines.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tests.bench.peers.trl_settings import common_settings
from tests.bench.rows import ROWS, tokens_of
from tests.bench.workload import MODEL, Workload
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from kubealign.local.processes.cpu import available_cores

#: TRL's default. A packed row's attention is dense on a CPU, so longer rows cost more.
_PACKED_TOKENS = 1024
_MICROBATCH = 8


class StepSeconds(TrainerCallback):
    """Writes a line for each step, with the tokens counted in the trainer's forward passes."""

    def __init__(self, counted: list[int], result: Path) -> None:
        self._counted, self._result, self._begun = counted, result, 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._begun = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step, now = time.perf_counter() - self._begun, time.time()
        line = {"step": state.global_step, "time": now, "batch/tokens": sum(self._counted)}
        self._counted.clear()
        with self._result.open("a") as file:
            file.write(json.dumps(line | {"seconds/step": step}) + "\n")


class Counting:
    """Mixin of a trainer that counts the tokens of each forward pass without padding."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.counted: list[int] = []
        super().__init__(*arguments, **keywords)

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **keywords: Any) -> Any:
        mask = inputs.get("attention_mask")
        self.counted.append(int(mask.sum()) if mask is not None else int(inputs["input_ids"].numel()))
        return super().compute_loss(model, inputs, *arguments, **keywords)


class CountingSFT(Counting, SFTTrainer):
    pass


class CountingDPO(Counting, DPOTrainer):
    pass


def settings(workload: Workload, folder: Path, steps: int, rows_per_step: int, way: str) -> dict[str, Any]:
    micro = {"packed": 1, "padded": min(_MICROBATCH, rows_per_step), "whole": rows_per_step}[way]
    longest = max(map(tokens_of, _rows(folder)))
    mean = sum(map(tokens_of, _rows(folder))) / len(_rows(folder))
    # A packed step has about as many tokens as its unpacked rows.
    packed_rows = max(1, round(mean * rows_per_step / _PACKED_TOKENS))
    arguments = common_settings(folder / "trl", workload.seed, workload.learning_rate)
    arguments |= {
        "max_steps": steps,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": packed_rows if way == "packed" else rows_per_step // micro,
        "max_length": max(longest, min(_PACKED_TOKENS, round(mean * rows_per_step)))
        if way == "packed"
        else longest,
        "logging_steps": 1,
    }
    if way == "packed":
        arguments["packing"] = True
    if way == "padded" and workload.method == "sft":
        arguments["train_sampling_strategy"] = "group_by_length"
    if workload.method == "dpo":
        arguments["beta"] = 0.1
    return arguments


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]


def main(way: str, rows_per_step: int, folder: Path, steps: int, result: Path) -> None:
    workload = Workload.read(folder)
    model = LlamaForCausalLM.from_pretrained(folder / MODEL, dtype=torch.float32)
    given = settings(workload, folder, steps, rows_per_step, way)
    rows = _rows(folder)
    common = {"model": model, "processing_class": PreTrainedTokenizerFast.from_pretrained(folder / MODEL)}
    trainer: Any
    if workload.method == "sft":
        data = [{"prompt": row["prompt"], "completion": " " + row["response"]} for row in rows]
        trainer = CountingSFT(args=SFTConfig(**given), train_dataset=Dataset.from_list(data), **common)
    else:
        data = [row | {name: " " + row[name] for name in ("chosen", "rejected")} for row in rows]
        reference = LlamaForCausalLM.from_pretrained(folder / MODEL, dtype=torch.float32)
        trainer = CountingDPO(
            args=DPOConfig(**given), ref_model=reference, train_dataset=Dataset.from_list(data), **common
        )
    if torch.get_num_threads() != available_cores():
        raise RuntimeError(f"TRL would compute with {torch.get_num_threads()} of {available_cores()} cores")
    trainer.add_callback(StepSeconds(trainer.counted, result))
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))

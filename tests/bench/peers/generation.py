"""Generates the steps of a workload with transformers: `python -m tests.bench.peers.generation WAY FOLDER
STEPS RESULT`. WAY: generate (padded), or continuous (its continuous batching)."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tests.bench.peers.forced import ending_at, ending_at_in_batch
from tests.bench.workload import MODEL, Workload
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def main(way: str, folder: Path, steps: int, result: Path) -> None:
    workload = Workload.read(folder)
    model = LlamaForCausalLM.from_pretrained(folder / MODEL, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / MODEL)
    rows = workload.rows(steps)
    config = GenerationConfig(
        max_new_tokens=workload.most_tokens,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=1,
        pad_token_id=0,
    )
    for step in range(steps):
        mine = rows[step * workload.prompts_per_step : (step + 1) * workload.prompts_per_step]
        prompts = [tokenizer(row["prompt"])["input_ids"] for row in mine for _ in row["lengths"]]
        lengths = [length for row in mine for length in row["lengths"]]
        begun = time.perf_counter()
        counts = (
            _padded(model, prompts, lengths, config)
            if way == "generate"
            else _continuous(model, prompts, lengths, config)
        )
        seconds = time.perf_counter() - begun
        if sorted(counts) != sorted(lengths):
            raise RuntimeError(f"{way} made responses of {sorted(counts)} tokens, not {sorted(lengths)}")
        line = {"step": step + 1, "time": time.time(), "batch/tokens": sum(lengths), "seconds/step": seconds}
        with result.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _padded(model: Any, prompts: Any, lengths: list[int], config: GenerationConfig) -> list[int]:
    ids = torch.tensor(prompts)
    with ending_at(model, lengths, ids.shape[1], 1), torch.no_grad():
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config)
    # The end token is the last token of each response.
    return [int(row.eq(1).int().argmax()) + 1 for row in out[:, ids.shape[1] :]]


def _continuous(model: Any, prompts: Any, lengths: list[int], config: GenerationConfig) -> list[int]:
    from transformers import ContinuousBatchingConfig

    with ending_at_in_batch(lengths), torch.no_grad():
        out = model.generate_batch(
            prompts,
            generation_config=config,
            continuous_batching_config=ContinuousBatchingConfig(**continuous_settings(lengths)),
        )
    return [len(each.generated_tokens) for each in out.values()]


def continuous_settings(lengths: list[int]) -> dict[str, Any]:
    """Return the cache size for all concurrent requests, which transformers cannot determine on a CPU."""
    page = 32
    pages = sum((32 + length) // page + 2 for length in lengths)
    return {"page_size": page, "num_blocks": pages, "max_batch_tokens": 2048}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))

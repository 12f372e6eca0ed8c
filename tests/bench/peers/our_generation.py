"""Generates the steps of a workload with our engine: `python -m tests.bench.peers.our_generation FOLDER STEPS
RESULT`. RESULT also receives the lengths and finish times of the samples."""

import json
import sys
import time
from pathlib import Path

from tests.bench.workload import MODEL, Workload
from transformers import PreTrainedTokenizerFast

from kubealign.spec.sections.engines import TorchEngineSpec as EngineSpec
from kubealign_services.generation.contract import GenerationRequest, SamplingParameters
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.roles.rollout.weights import read_folder_weights


def requests(workload: Workload, tokenizer: PreTrainedTokenizerFast, step: int) -> list[GenerationRequest]:
    """Return one request per sample, because lengths differ; the engine detects the shared prompts."""
    rows = workload.rows(step + 1)[step * workload.prompts_per_step :]
    return [
        GenerationRequest(
            f"{step}:{prompt_index}:{sample}",
            tuple(tokenizer(row["prompt"])["input_ids"]),
            (1000 * step + 10 * prompt_index + sample,),
            SamplingParameters(max_tokens=length, min_tokens=length),
        )
        for prompt_index, row in enumerate(rows)
        for sample, length in enumerate(row["lengths"])
    ]


def generate(engine: TorchRolloutEngine, asked: list[GenerationRequest]) -> list[tuple[int, float]]:
    """Return the tokens of each sample, and the seconds until it finished."""
    begun, done = time.perf_counter(), []
    for request in asked:
        engine.add(request)
    while len(done) < len(asked):
        for sample in engine.step():
            done.append((len(sample.tokens), time.perf_counter() - begun))
    return done


def main(folder: Path, steps: int, result: Path) -> None:
    workload = Workload.read(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / MODEL)
    engine = TorchRolloutEngine.create(folder / MODEL, EngineSpec(max_sequences=workload.sequences))
    for step in range(steps):
        # New weights before each step, like in a job, so that no prefix is cached from the step before.
        engine.refit(read_folder_weights(folder / MODEL), step)
        asked = requests(workload, tokenizer, step)
        begun = time.perf_counter()
        done = generate(engine, asked)
        seconds = time.perf_counter() - begun
        if sorted(tokens for tokens, _ in done) != sorted(workload.lengths(step)):
            raise RuntimeError(f"the engine made responses of {sorted(tokens for tokens, _ in done)} tokens")
        line = {
            "step": step + 1,
            "time": time.time(),
            "batch/tokens": sum(workload.lengths(step)),
            "seconds/step": seconds,
            "finished": done,
        }
        with result.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))

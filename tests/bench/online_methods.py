"""Compares RLOO with PPO at equal samples, and measures the share of clipped ratios when the old
log-probabilities are the engine's: `python -m tests.bench.online_methods`.

Each measurement runs in its own process; both methods run in turn, twice, and the better time counts. Memory
is the process's peak minus its size before the first model was created.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: 25 million weights, as in the other benchmarks.
LARGE = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
SEQUENCES, TOKENS = 32, 48
KL = {"fixed": {"coefficient": 0.05}}
ENTRIES: dict[str, dict[str, Any]] = {
    "ppo": {"promptsPerStep": SEQUENCES, "samplesPerPrompt": 1, "kl": KL},
    "rloo": {"promptsPerStep": SEQUENCES // 4, "samplesPerPrompt": 4, "kl": KL},
}


def measure_step(method: str, folder: Path) -> dict[str, float]:
    """Return seconds per step without the first one, and the memory in MiB."""
    from support.online_learning import OnlineLearner

    before = resident()
    learner = OnlineLearner(folder, task(), {method: ENTRIES[method]})
    learner.learn(1)
    begun = time.perf_counter()
    learner.learn(3)
    seconds = (time.perf_counter() - begun) / 3
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "mib": peak - before}


def measure_clipped(method: str, folder: Path) -> dict[str, float]:
    """Return the shares of token and response ratios outside 0.8 to 1.2 before the first update, with engine
    and trainer in bf16 and the engine's log-probabilities as the old ones. With the trainer's own
    log-probabilities the shares are 0."""
    import torch

    from kubealign_services.batch.packed import sequence_sums
    from support.online_learning import OnlineLearner

    half = {"precision": "BFloat16"}
    learner = OnlineLearner(folder, task({"backend": {"torch": half}}, half), {"rloo": ENTRIES["rloo"]})
    learner.learn(1)
    batch = learner.batch
    assert batch is not None
    mask = batch.token("loss_mask").bool()
    gap = (batch.token("old_logprobs") - batch.token("engine_logprobs")).where(mask, torch.zeros(()))
    ratios = {"tokens": gap[mask].exp(), "responses": sequence_sums(gap, batch).exp()}
    shares = {name: float(((ratio < 0.8) | (ratio > 1.2)).float().mean()) for name, ratio in ratios.items()}
    return shares | {"gap": float(gap[mask].abs().mean())}


def task(trainer: dict[str, Any] | None = None, engine: dict[str, Any] | None = None) -> Any:
    from support.online_learning import Task

    letters = "abcdefghijklmnopqrstuvwxyz"
    prompts = [first + second for first in letters for second in letters]
    shape = LARGE | {"initializer_range": 0.05}
    return Task(
        prompts,
        lambda prompt, response: response.count(prompt[-1]) / max(1, len(response)),
        shape,
        TOKENS,
        1.0e-5,
        trainer or {},
        engine or {},
    )


def resident() -> float:
    """Return the resident memory in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def alone(what: str, method: str) -> dict[str, float]:
    """Run a measurement in its own process."""
    command = [sys.executable, "-m", "tests.bench.online_methods", "--one", what, method]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=900)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs=2)
    arguments = parser.parse_args()
    if arguments.one:
        what, method = arguments.one
        with tempfile.TemporaryDirectory() as folder:
            measure = {"step": measure_step, "clipped": measure_clipped}[what]
            print(json.dumps(measure(method, Path(folder))))
        return
    runs = [(method, alone("step", method)) for _ in range(2) for method in ENTRIES]
    best = {
        method: {
            key: min(figures[key] for name, figures in runs if name == method) for key in ("seconds", "mib")
        }
        for method in ENTRIES
    }
    for method, figures in best.items():
        print(f"{method}: {figures['seconds']:.2f} s a step, {figures['mib']:.0f} MiB")
    ratio = {key: best["rloo"][key] / best["ppo"][key] for key in ("seconds", "mib")}
    print(f"rloo / ppo: {ratio['seconds']:.2f} of the seconds, {ratio['mib']:.2f} of the memory")
    clipped = alone("clipped", "rloo")
    print(
        f"bf16, engine's base: {clipped['tokens']:.2%} of token ratios and {clipped['responses']:.2%} of "
        f"response ratios outside 0.8 to 1.2, mean gap {clipped['gap']:.2g} nats; trainer's base: 0"
    )


if __name__ == "__main__":
    main()

"""Arguments that all of TRL's trainers get: the job's optimiser, on a CPU, without checkpoints or trackers.
Imports nothing of kubealign: PPO runs in an environment that does not have it.
"""

from pathlib import Path
from typing import Any


def common_settings(output: Path, seed: int, learning_rate: float) -> dict[str, Any]:
    """Return the arguments of an optimiser like kubealign's default with a constant learning rate."""
    return {
        "output_dir": str(output),
        "seed": seed,
        "learning_rate": learning_rate,
        "lr_scheduler_type": "constant",
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }

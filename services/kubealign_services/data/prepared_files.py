"""Names of the files of a prepared job, and what processes without models read from them."""

import json
from pathlib import Path

from kubealign.planning.model.routing_record import max_routing_record_bytes

FOLDER = "prepared"
MODELS, REPORT, INPUTS = "models.json", "report.json", "inputs.json"
TRAIN, VALIDATION = "train.parquet", "validation.parquet"
#: Catalog of the tools that the policy calls in its model's own format; absent where it calls none.
TOOLS = "tools.json"


def validation_file(set_name: str | None) -> str:
    """Return the name of the file with the rows of a validation set; None: those of validation.data."""
    return VALIDATION if set_name is None else f"validation-{set_name}.parquet"


def checkpoint_role(step: int) -> str:
    """Return the name of the prepared model of an evaluation's checkpoint."""
    return f"checkpoint-{step}"


def read_longest_context(run_dir: Path) -> int:
    """Return the bytes of the longest prompt and columns of a row; 0 where there is no prepared data."""
    try:
        report = json.loads((run_dir / FOLDER / REPORT).read_text())
    except (OSError, ValueError):
        return 0
    held_out = (report.get("validation"), *report.get("validation_sets", {}).values())
    parts = [part for part in (report.get("train"), *held_out) if part is not None]
    return max((int(part["longest_context_bytes"]) for part in parts), default=0)


def read_routing_record_bytes(run_dir: Path) -> int:
    """Return the most bytes of a token's recorded experts; 0 where no policy is prepared."""
    folder = run_dir / FOLDER
    try:
        policy = json.loads((folder / MODELS).read_text())["policy"]
        config = json.loads((folder / policy / "config.json").read_text())
    except (OSError, ValueError, KeyError):
        return 0
    return max_routing_record_bytes(config)

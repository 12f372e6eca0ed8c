"""The launcher with two ranks: `main([NAME, FOLDER, HEALTH, PORT, PORT])`, with ports of their health."""

import asyncio
import os
from pathlib import Path

from kubealign.process_settings import ProcessSettings
from kubealign_services.runtime.process.pod_launcher import run_ranks

_PROGRAM = "support.rank_program"


def rank_settings(folder: Path, rank: int, port: str) -> tuple[ProcessSettings, Path]:
    file = folder / "unused"
    settings = ProcessSettings.model_validate(
        {
            "name": f"rank-{rank}",
            "role": "trainer",
            "rank": rank,
            "world_size": 2,
            "job": file,
            "run_dir": folder,
            "shared_memory": folder,
            "health": f"127.0.0.1:{port}",
            "tls": {"ca": file, "certificate": file, "key": file},
            "nats": {"url": "tls://bus", "user": "u", "password": "p"},
            "redis": {"host": "redis", "port": 1, "user": "u", "password": "p", "prefix": "p"},
            "termination": folder / f"rank-{rank}.termination",
        }
    )
    path = folder / f"rank-{rank}.json"
    path.write_text(settings.model_dump_json())
    return settings, path


def main(argv: list[str]) -> int:
    folder = Path(argv[1])
    ranks = [rank_settings(folder, rank, port) for rank, port in enumerate(argv[3:])]
    environments = [{**os.environ, "DEVICES": str(rank)} for rank in range(len(ranks))]
    health, termination = f"127.0.0.1:{argv[2]}", folder / "termination"
    return asyncio.run(run_ranks(_PROGRAM, ranks, environments, health, termination))

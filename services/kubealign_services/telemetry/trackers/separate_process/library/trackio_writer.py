"""Writes to a Trackio project: files of the tracker, a server, or a Space of the Hugging Face hub."""

import os
from typing import Any


class TrackioWriter:
    """Writes one run for the job across its restarts. A repeated step is added with a higher `fence`."""

    def __init__(self, job: dict[str, Any], folder: str, settings: dict[str, Any]) -> None:
        # Read when trackio is imported.
        os.environ["TRACKIO_DIR"] = folder
        import trackio

        self._trackio = trackio
        trackio.init(
            project=settings["project"],
            name=job["name"],
            group=job["namespace"],
            space_id=settings["space"],
            server_url=settings["server_url"],
            config=job["spec"],
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def step(self, step: int, fence: int, metrics: dict[str, float]) -> None:
        self._trackio.log({"fence": fence, **metrics}, step=step)

    def completions(self, step: int, rows: list[dict[str, Any]]) -> None:
        columns = list(rows[0])
        table = self._trackio.Table(columns=columns, data=[[row[name] for name in columns] for row in rows])
        self._trackio.log({"fence": rows[0]["fence"], f"completions/{rows[0]['purpose']}": table}, step=step)

    def close(self, outcome: str) -> None:
        self._trackio.finish()

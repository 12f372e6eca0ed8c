"""A report of one job for a bug report: all that the backend knows of it, as the files of an archive."""

import io
import json
import platform
import tarfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from kubealign.client.backends.base import JobBackend
from kubealign.client.errors import KubealignError, NotPossible
from kubealign.client.records import JobRecord, JobRef
from kubealign.diagnostics.redaction import redact

#: Steps whose metrics are in the report.
MAX_STEPS = 100_000


async def collect_report(backend: JobBackend, ref: JobRef, tail: int) -> dict[str, bytes]:
    """Return the files of a report: name -> content.

    A part that cannot be read is named in `errors.txt`, with its cause. Values of environment variables are
    removed.

    Args:
        tail: Number of last lines of each process's log.

    Raises:
        KubealignError: The job itself cannot be read.
    """
    job = await backend.get(ref)
    report = _Report()
    report.add("versions.json", _versions(backend.kind))
    report.add("job.json", redact(dict(job.resource)))
    await report.add_from("pods.json", _pods(backend, ref))
    await report.add_from("processes.json", _processes(backend, ref))
    await report.add_from("events.json", _events(backend, ref))
    await report.add_from("metrics.json", _metrics(backend, ref))
    await report.add_logs(backend, ref, job, tail)
    await report.add_logs(backend, ref, job, tail, previous=True)
    return report.files()


def write_archive(path: Path, folder: str, files: Mapping[str, bytes]) -> None:
    """Write the files, in a folder of this name, as a .tar.gz that only its owner may read.

    Raises:
        OSError: The archive cannot be written; FileExistsError: there is one already.
    """
    path.touch(mode=0o600, exist_ok=False)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(content))


class _Report:
    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._errors: list[str] = []

    def add(self, name: str, document: Any) -> None:
        self._files[name] = (json.dumps(document, indent=2, default=str) + "\n").encode()

    async def add_from(self, name: str, reading: Awaitable[Any]) -> None:
        try:
            self.add(name, await reading)
        except KubealignError as error:
            self._errors.append(f"{name}: {error}")

    async def add_logs(
        self, backend: JobBackend, ref: JobRef, job: JobRecord, tail: int, *, previous: bool = False
    ) -> None:
        """Add a file for each process, with the lines that could be read before an error.

        Args:
            previous: Add the logs of the last failed attempts, where there are any.
        """
        lines: defaultdict[str, list[str]] = defaultdict(list)
        try:
            async for line in backend.logs(ref, tail=tail, previous=previous):
                lines[line.process].append(line.text)
        except KubealignError as error:
            # No process need have failed, and on one machine a log holds all attempts.
            if not (previous and isinstance(error, NotPossible)):
                self._errors.append(f"{'previous ' if previous else ''}logs of {job.name}: {error}")
        suffix = ".previous.log" if previous else ".log"
        for process, texts in lines.items():
            self._files[f"logs/{process}{suffix}"] = "".join(f"{text}\n" for text in texts).encode(
                errors="replace"
            )

    def files(self) -> dict[str, bytes]:
        errors = "".join(f"{error}\n" for error in self._errors).encode()
        return {**self._files, **({"errors.txt": errors} if errors else {})}


async def _pods(backend: JobBackend, ref: JobRef) -> Any:
    return redact(list(await backend.pods(ref)))


async def _processes(backend: JobBackend, ref: JobRef) -> Sequence[Any]:
    return [asdict(process) for process in await backend.processes(ref)]


async def _events(backend: JobBackend, ref: JobRef) -> Sequence[Any]:
    return [asdict(event) for event in await backend.events(ref)]


async def _metrics(backend: JobBackend, ref: JobRef) -> Sequence[Any]:
    return [asdict(step) for step in await backend.metrics(ref, count=MAX_STEPS)]


def _versions(backend: str) -> Mapping[str, str]:
    return {
        "kubealign": metadata.version("kubealign"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "backend": backend,
    }

"""Dry run: the processes that `kubealign run` would start. Pure."""

from collections.abc import Iterator, Sequence

from kubealign.roles import Process, roles
from kubealign.spec.dependencies import dependency_names
from kubealign.spec.job import AlignmentJob


def describe_plan(jobs: Sequence[AlignmentJob]) -> Iterator[str]:
    """Yield lines that list each job with its processes, in start order."""
    for job in jobs:
        needed = sorted(dependency_names(job))
        limits = [(job.spec.max_steps, "steps"), (job.spec.max_epochs, "epochs")]
        length = " or ".join(f"{count} {unit}" for count, unit in limits if count is not None)
        if job.spec.algorithm.evaluate is not None:
            length = f"models of steps {', '.join(map(str, job.spec.algorithm.evaluate.steps))}"
        yield (
            f"{job.name}: {job.spec.algorithm.member}, {length}"
            + (f", after {', '.join(needed)}" if needed else "")
        )
        rows = [
            ("nats", "nats-server", "tls://127.0.0.1", ""),
            ("redis", "redis-server", "127.0.0.1", ""),
            *(_row(process) for process in roles(job)),
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        for name, module, address, after in rows:
            yield f"  {name:<{widths[0]}}  {module:<{widths[1]}}  {address:<{widths[2]}}  {after}".rstrip()


def _row(process: Process) -> tuple[str, str, str, str]:
    after = f"after {', '.join(process.after)}" if process.after else "first"
    if process.one_shot:
        address = "runs once"
    elif process.serves:
        address = "grpc+tls://127.0.0.1"
    else:
        address = f"rank {process.rank} of {process.world_size}"
    return process.name, process.module, address, after

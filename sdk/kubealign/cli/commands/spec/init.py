"""`kubealign init`: writes a commented job to start from."""

from collections.abc import Iterator
from enum import Enum, EnumType
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer


def algorithm_names() -> list[str]:
    """Return the algorithms of the spec, in command line spelling."""
    from kubealign.spec.algorithms import algorithm_specs

    return [name.replace("_", "-") for name in algorithm_specs()]


class _LazyChoices(EnumType):
    """Enumerates choices when they are needed.

    Typer reads the choices for help, errors and completion of this command only; importing the spec for
    every command would double its start-up time.
    """

    def __iter__(cls) -> Iterator[Any]:
        return iter(algorithm_names())


if TYPE_CHECKING:
    AlgorithmName: TypeAlias = str
else:

    class AlgorithmName(Enum, metaclass=_LazyChoices):
        """One of `algorithm_names()`. Typer checks the argument as an Enum and passes the string."""


def init(
    algorithm: Annotated[
        AlgorithmName,
        typer.Argument(metavar="ALGORITHM", show_default=False, help="sft, reward-model, ppo, ..."),
    ],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The job's name.", show_default=False)
    ] = None,
) -> None:
    """Write a commented job for an algorithm.

    Required fields are set; every other field is listed with its default.

    kubealign init ppo > job.yaml && kubealign validate job.yaml
    """
    from kubealign.cli.exit_codes import exit_on_error
    from kubealign.spec.docs.job_template import job_template
    from kubealign.spec.job import AlignmentJob

    with exit_on_error():
        text = job_template(algorithm, name or f"my-{algorithm}")
        # Validates the job name before anything is written.
        AlignmentJob.from_yaml(text)
    typer.echo(text, nl=False)

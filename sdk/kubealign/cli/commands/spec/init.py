"""`kubealign init`: writes a commented job to start from."""

from enum import StrEnum
from typing import Annotated

import typer


class AlgorithmName(StrEnum):
    """Algorithms of the spec, in command line spelling."""

    SFT = "sft"
    DISTILLATION = "distillation"
    REWARD_MODEL = "reward-model"
    PPO = "ppo"
    REINFORCE = "reinforce"
    REINFORCE_PLUS_PLUS = "reinforce-plus-plus"
    RLOO = "rloo"
    REMAX = "remax"
    GRPO = "grpo"
    DR_GRPO = "dr-grpo"
    DAPO = "dapo"
    GSPO = "gspo"
    CISPO = "cispo"
    DPO = "dpo"
    IPO = "ipo"
    RPO = "rpo"
    ORPO = "orpo"
    SIMPO = "simpo"
    KTO = "kto"
    SPIN = "spin"
    REJECTION_SAMPLING = "rejection-sampling"
    SELF_REWARDING = "self-rewarding"
    GENERATE = "generate"
    ANNOTATE = "annotate"
    CUSTOM = "custom"
    CUSTOM_OFFLINE = "custom-offline"


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
        text = job_template(algorithm.value, name or f"my-{algorithm.value}")
        # Validates the job name before anything is written.
        AlignmentJob.from_yaml(text)
    typer.echo(text, nl=False)

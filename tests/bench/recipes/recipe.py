"""Recipes whose results are published: their job files, their inputs, and their counterparts in TRL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tests.bench.process import ROOT

#: Folder of the job files.
JOBS = ROOT / "examples" / "smollm2" / "recipes"


class Data(StrEnum):
    """Rows of a recipe.

    pairs: correct and wrong solutions of GSM8K's questions. sums: two-digit sums. questions: those of
    reasoning-gym. products: of two-digit numbers.
    """

    PAIRS = "pairs"
    SUMS = "sums"
    QUESTIONS = "questions"
    PRODUCTS = "products"


@dataclass(frozen=True)
class Measure:
    """A metric that both sides report under this name.

    decimals: of its values in tables.
    """

    metric: str
    title: str
    decimals: int = 3


@dataclass(frozen=True)
class Recipe:
    """One recipe.

    Args:
        job: Name of the last AlignmentJob in the file `NAME.yaml`.
        measures: The first one is the result, on held-out rows.
        peer: Module of `trl_side` that performs the recipe, in the environment `peer_environment` of .venv
            (empty: .venv itself). Empty: kubealign alone runs the recipe.
        needs: Parameter of the job file -> recipe whose result with seed 1 it names.
        remark: Differences of the two sides that remain, and what the curves show.
    """

    name: str
    title: str
    job: str
    data: Data
    steps: int
    measures: Sequence[Measure]
    peer: str = ""
    peer_name: str = "TRL 1.16"
    peer_environment: str = ""
    needs: Mapping[str, str] = field(default_factory=dict)
    remark: str = ""

    @property
    def file(self) -> Path:
        return JOBS / f"{self.name}.yaml"

    @property
    def peer_python(self) -> Path:
        return ROOT / ".venv" / self.peer_environment / "bin" / "python"


_RIGHT = "right answers to 64 held-out sums, share"

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "sft",
            "Supervised fine-tuning",
            "smollm2-sft",
            Data.PAIRS,
            16,
            (
                Measure("val/loss", "-log p of a response token, 48 held-out rows"),
                Measure("sft/loss", "-log p of a response token, the step's rows"),
            ),
            "offline",
            remark="Each side draws the rows in an order of its own; the losses on held-out rows differ by "
            "less than 0.01.",
        ),
        Recipe(
            "reward-model",
            "Reward model (Bradley-Terry)",
            "smollm2-reward-model",
            Data.PAIRS,
            16,
            (
                Measure("val/accuracy", "accuracy on 48 held-out pairs"),
                Measure("rm/loss", "loss of the step's pairs"),
            ),
            "offline",
            remark="Each side draws the rows in an order of its own. The standard error of an accuracy on 48 "
            "pairs is 0.07, so two runs that differ by less than about 0.2 do not tell which side learns "
            "better.",
        ),
        Recipe(
            "dpo",
            "DPO",
            "smollm2-dpo",
            Data.PAIRS,
            16,
            (
                Measure("val/accuracy", "accuracy of the implicit reward on 48 held-out pairs"),
                Measure("val/loss", "loss on 48 held-out pairs"),
            ),
            "offline",
            remark="Before the first step policy and reference are equal: the accuracy is that of rounding "
            "errors, and the loss is log 2. Each side draws the rows in an order of its own; the standard "
            "error of an accuracy on 48 pairs is 0.07.",
        ),
        Recipe(
            "ppo",
            "PPO with a reward model",
            "smollm2-ppo",
            Data.PAIRS,
            12,
            (
                Measure("val/reward/preference", "reward of responses to 48 held-out prompts", 2),
                Measure("reward/mean", "reward of the step's responses", 2),
            ),
            "ppo",
            peer_name="TRL 1.12",
            peer_environment="trl-ppo",
            needs={"REWARD_MODEL": "reward-model"},
            remark="On both sides the reward of held-out prompts is higher at steps 4, 8 and 12 than at the "
            "start. Validations of one run differ by up to 0.23 from the next, so two runs do not tell which "
            "side learns better. TRL's tokenizer needs a padding token of its own: SmolLM2's is also the end "
            "of a turn, and TRL's trainer hides each padding token from the models. With it the reward "
            "of held-out prompts fell to 0.17.",
        ),
        Recipe(
            "rloo",
            "RLOO with a verifiable reward",
            "smollm2-recipe-rloo",
            Data.SUMS,
            16,
            (
                Measure("val/reward/right", _RIGHT),
                Measure("reward/mean", "right answers of the step, share"),
            ),
            "online",
            remark="The sides draw other prompts and samples. The standard error of a share of 64 sums is "
            "0.06: their results agree.",
        ),
        Recipe(
            "grpo",
            "GRPO with a verifiable reward",
            "smollm2-recipe-grpo",
            Data.SUMS,
            16,
            (
                Measure("val/reward/right", _RIGHT),
                Measure("reward/mean", "right answers of the step, share"),
            ),
            "online",
            remark="The sides draw other prompts and samples. The standard error of a share of 64 sums is "
            "0.06: their results agree.",
        ),
        Recipe(
            "distillation",
            "On-policy distillation",
            "smollm2-distillation",
            Data.SUMS,
            16,
            (Measure("val/right", _RIGHT),),
            "online",
            needs={"TEACHER": "grpo"},
            remark="The teacher is kubealign's result of GRPO, which answers 0.56 of these sums. The "
            "standard error of a share of 64 sums is 0.06: the results agree.",
        ),
        Recipe(
            "reasoning-gym",
            "GRPO in an environment of reasoning-gym",
            "smollm2-reasoning-gym",
            Data.QUESTIONS,
            16,
            (
                Measure("val/reward/gym", "reward on 64 held-out questions"),
                Measure("reward/mean", "reward of the step's responses"),
            ),
            remark="The environment rewards a number alone, and an answer that contains it with a share of "
            "its length.",
        ),
        Recipe(
            "tool-calls",
            "GRPO with a tool",
            "smollm2-tool-calls",
            Data.PRODUCTS,
            12,
            (
                Measure("val/reward/right", "right answers to 64 held-out products, share"),
                Measure("rollout/turns", "turns of a response"),
            ),
            remark="Before the first step the model has seen the format of calls in four steps on "
            "demonstrations, without which it calls no tool.",
        ),
    )
}

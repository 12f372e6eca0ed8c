"""Critique and revision of samples by the policy that made them (Bai et al. 2022, section 3)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kubealign.spec.algorithms import Revision
from kubealign_services.driver.making.asking import Asking, Question
from kubealign_services.driver.making.drawing import drawn
from kubealign_services.driver.making.form import Form
from kubealign_services.driver.making.prompts import Prompts
from kubealign_services.driver.making.samples import Sample, samples_of
from kubealign_services.driver.making.state import MakingState
from kubealign_services.driver.report import StepFigures

TOO_LONG = "too_long"


class Revising:
    """A Stage: each sample's response becomes the one that the policy writes after its own critique.

    Columns: first_response; critiques and principles, one of each for every revision. longest: tokens that
    an answer may have.
    """

    def __init__(
        self, spec: Revision, asking: Asking, prompts: Prompts, longest: int, form: Form, seed: int
    ) -> None:
        self._spec = spec
        self._asking = asking
        self._prompts = prompts
        self._longest = longest
        self._form = form
        self._seed = seed

    async def __call__(
        self, samples: Sequence[Sample], state: MakingState, step: StepFigures
    ) -> list[Sample]:
        revised = [
            replace(sample, columns={"first_response": sample.text, "critiques": [], "principles": []})
            for sample in samples
        ]
        with step.phase("revise"):
            for time in range(self._spec.times):
                revised = await self._once(revised, time, state)
        if revised:
            changed = sum(sample.text != sample.columns["first_response"] for sample in revised)
            step.add({"revision/changed_share": changed / len(revised)})
        return revised

    async def _once(self, samples: Sequence[Sample], time: int, state: MakingState) -> list[Sample]:
        values = {
            sample.name: {
                "prompt": self._form.asked(sample.row),
                "response": sample.text,
                "principle": drawn(self._spec.principles, self._seed, f"{sample.name}/{time}"),
            }
            for sample in samples
        }
        critiques = await self._answers(f"critique.{time}", self._spec.critique, samples, values, state)
        for name, critique in critiques.items():
            values[name]["critique"] = critique.text
        criticised = [sample for sample in samples if sample.name in critiques]
        revisions = await self._answers(f"revision.{time}", self._spec.revision, criticised, values, state)
        return [
            _after(sample, critiques[sample.name], revisions[sample.name], values[sample.name]["principle"])
            for sample in criticised
            if sample.name in revisions
        ]

    async def _answers(
        self,
        stage: str,
        template: str,
        samples: Sequence[Sample],
        values: Mapping[str, Mapping[str, str]],
        state: MakingState,
    ) -> dict[str, Sample]:
        """Sample's name -> what the policy answers to the template; those that are too long, or given up, are
        left out and noted."""
        tokens = self._prompts.tokens(template, [values[sample.name] for sample in samples], self._longest)
        questions = {
            f"{stage}/{sample.name}": (sample, prompt)
            for sample, prompt in zip(samples, tokens, strict=True)
            if prompt is not None
        }
        state.leave_out(TOO_LONG, len(samples) - len(questions))
        groups = await self._asking(
            [Question(name, prompt) for name, (_, prompt) in questions.items()], 1, state
        )
        return {
            questions[name][0].name: samples_of(questions[name][0].row, group)[0]
            for name, group in groups.items()
        }


def _after(sample: Sample, critique: Sample, revision: Sample, principle: str) -> Sample:
    columns = {
        **sample.columns,
        "critiques": [*sample.columns["critiques"], critique.text],
        "principles": [*sample.columns["principles"], principle],
    }
    return replace(
        sample,
        text=revision.text,
        tokens=revision.tokens,
        truncated=revision.truncated,
        columns=columns,
    )

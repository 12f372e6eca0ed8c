"""Critique and revision of samples by the policy that generated them (Bai et al. 2022, section 3)."""

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
    """Sample stage that replaces each response by the policy's revision after its own critique.

    Adds the columns first_response, critiques and principles; the last two have one entry per revision.

    Args:
        max_answer_tokens: Most tokens of an answer.
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
        """Critique and revise all samples once."""
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
        """Return sample name -> the policy's answer to the filled template.

        Prompts that are too long, or failed after all retries, are left out and counted in the state.
        """
        tokens = self._prompts.tokens(template, [values[sample.name] for sample in samples], self._longest)
        prompts_by_name = {
            f"{stage}/{sample.name}": (sample, prompt)
            for sample, prompt in zip(samples, tokens, strict=True)
            if prompt is not None
        }
        state.leave_out(TOO_LONG, len(samples) - len(prompts_by_name))
        groups = await self._asking(
            [Question(name, prompt) for name, (_, prompt) in prompts_by_name.items()], 1, state
        )
        return {
            prompts_by_name[name][0].name: samples_of(prompts_by_name[name][0].row, group)[0]
            for name, group in groups.items()
        }


def _after(sample: Sample, critique: Sample, revision: Sample, principle: str) -> Sample:
    """Return the sample with its revised text and the columns of this revision."""
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

"""Critique and revision of samples by the policy that generated them (Bai et al. 2022, section 3)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import xxhash

from kubealign.spec.algorithms import CritiqueRevision
from kubealign_services.roles.driver.data_generation.requests import (
    PolicyRequest,
    PromptRenderer,
    RequestClient,
)
from kubealign_services.roles.driver.data_generation.row_format import RowFormatter
from kubealign_services.roles.driver.data_generation.samples import PolicySample, collect_samples
from kubealign_services.roles.driver.data_generation.state import DataGenerationState
from kubealign_services.roles.driver.metrics.report import StepRecord

TOO_LONG = "too_long"


class CritiqueReviser:
    """Sample stage that replaces each response by the policy's revision after its own critique.

    Adds the columns first_response, critiques and principles; the last two have one entry per revision.

    Args:
        max_answer_tokens: Most tokens of an answer.
    """

    def __init__(
        self,
        spec: CritiqueRevision,
        client: RequestClient,
        prompts: PromptRenderer,
        max_answer_tokens: int,
        row_formatter: RowFormatter,
        seed: int,
    ) -> None:
        self._spec = spec
        self._client = client
        self._prompts = prompts
        self._max_answer_tokens = max_answer_tokens
        self._row_formatter = row_formatter
        self._seed = seed

    async def __call__(
        self, samples: Sequence[PolicySample], state: DataGenerationState, step: StepRecord
    ) -> list[PolicySample]:
        revised = [
            replace(sample, columns={"first_response": sample.text, "critiques": [], "principles": []})
            for sample in samples
        ]
        with step.phase("revise"):
            for time in range(self._spec.times):
                revised = await self._revise_once(revised, time, state)
        if revised:
            changed = sum(sample.text != sample.columns["first_response"] for sample in revised)
            step.add({"revision/changed_share": changed / len(revised)})
        return revised

    async def _revise_once(
        self, samples: Sequence[PolicySample], time: int, state: DataGenerationState
    ) -> list[PolicySample]:
        """Critique and revise all samples once."""
        values = {
            sample.name: {
                "prompt": self._row_formatter.show_prompt(sample.row),
                "response": sample.text,
                "principle": sample_principle(self._spec.principles, self._seed, f"{sample.name}/{time}"),
            }
            for sample in samples
        }
        critiques = await self._ask_policy(f"critique.{time}", self._spec.critique, samples, values, state)
        for name, critique in critiques.items():
            values[name]["critique"] = critique.text
        criticised = [sample for sample in samples if sample.name in critiques]
        revisions = await self._ask_policy(f"revision.{time}", self._spec.revision, criticised, values, state)
        return [
            _build_revised(
                sample, critiques[sample.name], revisions[sample.name], values[sample.name]["principle"]
            )
            for sample in criticised
            if sample.name in revisions
        ]

    async def _ask_policy(
        self,
        stage: str,
        template: str,
        samples: Sequence[PolicySample],
        values: Mapping[str, Mapping[str, str]],
        state: DataGenerationState,
    ) -> dict[str, PolicySample]:
        """Return sample name -> the policy's answer to the filled template.

        Prompts that are too long, or failed after all retries, are left out and counted in the state.
        """
        tokens = self._prompts.render(
            template, [values[sample.name] for sample in samples], self._max_answer_tokens
        )
        prompts_by_name = {
            f"{stage}/{sample.name}": (sample, prompt)
            for sample, prompt in zip(samples, tokens, strict=True)
            if prompt is not None
        }
        state.count_skipped(TOO_LONG, len(samples) - len(prompts_by_name))
        groups = await self._client(
            [PolicyRequest(name, prompt) for name, (_, prompt) in prompts_by_name.items()], 1, state
        )
        return {
            prompts_by_name[name][0].name: collect_samples(prompts_by_name[name][0].row, group)[0]
            for name, group in groups.items()
        }


def _build_revised(
    sample: PolicySample, critique: PolicySample, revision: PolicySample, principle: str
) -> PolicySample:
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


def sample_principle(principles: Sequence[str], seed: int, name: str) -> str:
    """Return one of the principles, the same for the same seed and name."""
    return principles[xxhash.xxh3_64_intdigest(f"{seed}:principle:{name}".encode()) % len(principles)]

"""Workload of a step in tokens, from the job's fields."""

from dataclasses import dataclass

from kubealign.spec.job import AlignmentJobSpec

#: Assumed prompt length if the job sets no limit.
ASSUMED_PROMPT = 1024
#: Assumed length of responses in the job's rows, which no field limits.
ASSUMED_RESPONSE = 1024


@dataclass(frozen=True)
class Workload:
    """Tokens and sequences of one step.

    Attributes:
        prompt: Maximum prompt length in tokens.
        response: Maximum response length in tokens.
        sequences: Sequences of one step.
        epochs: Optimisation epochs over the sequences.
        updates: Optimiser steps of one step.
        assumed: Descriptions of assumed values that no field states.
    """

    prompt: int
    response: int
    sequences: int
    epochs: int
    updates: int
    assumed: tuple[str, ...] = ()

    @property
    def sequence(self) -> int:
        """Maximum sequence length in tokens."""
        return self.prompt + self.response

    @property
    def tokens(self) -> int:
        """Tokens of a step if all sequences have the maximum length."""
        return self.sequences * self.sequence

    @property
    def minibatch_tokens(self) -> int:
        """Tokens of one optimiser step."""
        return -(-self.tokens * self.epochs // self.updates)


def workload_of(spec: AlignmentJobSpec, prompt: int | None = None, response: int | None = None) -> Workload:
    """Return the workload of a job.

    Args:
        prompt: Known prompt length in tokens; None: the spec's value, or an assumption that is reported.
        response: Known response length in tokens; None: the same.
    """
    algorithm, data = spec.algorithm.value, spec.data.value
    assumed = []
    if prompt is None:
        prompt = data.max_tokens
    if prompt is None:
        prompt = ASSUMED_PROMPT
        assumed.append(
            f"prompts of {prompt} tokens, because spec.data.{spec.data.member}.maxTokens is not set"
        )
    sampled = bool(algorithm.samples)
    if response is None and sampled:
        response = spec.rollout.sampling.max_tokens
    if response is None:
        response = ASSUMED_RESPONSE
        assumed.append(f"responses of {response} tokens in the rows, which no field limits")
    return Workload(
        prompt,
        response,
        _sequences_per_step(algorithm),
        int(getattr(algorithm, "epochs_per_step", 1)),
        int(algorithm.updates_per_step),
        tuple(assumed),
    )


def _sequences_per_step(algorithm: object) -> int:
    """Return the sequences of one step; a row that is a pair of responses has two."""
    prompts = getattr(algorithm, "prompts_per_step", None)
    if prompts is not None:
        samples = getattr(algorithm, "samples_per_prompt", 1) + getattr(algorithm, "reference_sample", False)
        return int(prompts) * int(samples)
    rows = int(getattr(algorithm, "rows_per_step", 1))
    return rows * int(getattr(algorithm, "sequences_per_row", 1))

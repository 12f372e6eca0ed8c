"""How many tokens a step has, from the job's own numbers."""

from dataclasses import dataclass

from kubealign.spec.job import AlignmentJobSpec

#: Where a job sets no bound on its prompts.
ASSUMED_PROMPT = 1024
#: Where a job's rows hold responses, which no field bounds.
ASSUMED_RESPONSE = 1024


@dataclass(frozen=True)
class Work:
    """prompt, response: the longest, in tokens. sequences: of one step. epochs: times that each is trained
    on. updates: optimiser steps of one step. assumed: what no field says, in words."""

    prompt: int
    response: int
    sequences: int
    epochs: int
    updates: int
    assumed: tuple[str, ...] = ()

    @property
    def sequence(self) -> int:
        """Tokens of the longest sequence."""
        return self.prompt + self.response

    @property
    def tokens(self) -> int:
        """Tokens of a step, if all are the longest."""
        return self.sequences * self.sequence

    @property
    def minibatch_tokens(self) -> int:
        """Tokens of one optimiser step."""
        return -(-self.tokens * self.epochs // self.updates)


def work_of(spec: AlignmentJobSpec, prompt: int | None = None, response: int | None = None) -> Work:
    """prompt, response: tokens that are known better than the spec says them; None: what it says, or an
    assumption, which is told."""
    algorithm, data = spec.algorithm.value, spec.data.value
    assumed = []
    if prompt is None:
        prompt = data.max_tokens
    if prompt is None:
        prompt = ASSUMED_PROMPT
        assumed.append(f"prompts of {prompt} tokens, for spec.data.{spec.data.member}.maxTokens is not set")
    sampled = bool(algorithm.samples)
    if response is None and sampled:
        response = spec.rollout.sampling.max_tokens
    if response is None:
        response = ASSUMED_RESPONSE
        assumed.append(f"responses of {response} tokens, which the rows hold and no field bounds")
    return Work(
        prompt,
        response,
        _sequences(algorithm),
        int(getattr(algorithm, "epochs_per_step", 1)),
        int(algorithm.updates_per_step),
        tuple(assumed),
    )


def _sequences(algorithm: object) -> int:
    """Sequences that one step trains on; of preferences two a row."""
    prompts = getattr(algorithm, "prompts_per_step", None)
    if prompts is not None:
        return int(prompts) * int(getattr(algorithm, "samples_per_prompt", 1))
    rows = int(getattr(algorithm, "rows_per_step", 1))
    return rows * (2 if getattr(algorithm, "data", "") == "preferences" else 1)

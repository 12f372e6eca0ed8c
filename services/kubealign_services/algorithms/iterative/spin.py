"""SPIN: self-play fine-tuning."""

from collections.abc import Sequence

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.iterative.rounds import RoundPrompt, RoundResponse, RoundRow, RoundRows
from kubealign_services.algorithms.offline.base import OfflineAlgorithm
from kubealign_services.algorithms.offline.dpo import DPOAlgorithm
from kubealign_services.algorithms.offline.pairwise import PairwiseObjective


class SPINAlgorithm(OfflineAlgorithm):
    """Chen et al. 2024, "Self-Play Fine-Tuning Converts Weak Language Models to Strong Language Models", eq.

    4.7. In round k, with y a demonstration and y' a response of the weights p_k at the start of the round,
    the loss of a pair is

        -log sigmoid(beta (log p(y) / p_k(y)  -  log p(y') / p_k(y')))

    which is DPO's, with the demonstration preferred and the reference renewed each round (the paper's
    lambda is beta). Each response forms a pair with its prompt's demonstration.
    """

    needs_reference = True

    def __init__(self, entry: spec.SPINSpec) -> None:
        self._spec = entry

    def policy_objective(self) -> PairwiseObjective:
        return DPOAlgorithm(spec.DPOSpec(beta=self._spec.beta)).policy_objective()

    def rows(self, prompts: Sequence[RoundPrompt]) -> RoundRows:
        rows = [
            RoundRow(prompt, (_demonstration(prompt, response), response))
            for prompt in prompts
            for response in prompt.responses
        ]
        alike = sum(list(row.responses[0].tokens) == list(row.responses[1].tokens) for row in rows)
        return RoundRows(rows, {"round/alike_share": alike / max(1, len(rows))}, "no response was sampled")


def _demonstration(prompt: RoundPrompt, response: RoundResponse) -> RoundResponse:
    """Return the demonstration, named after the response that it is paired with.

    Raises ValueError where there is none.
    """
    if prompt.demonstration is None:
        raise ValueError(f"prompt {prompt.name} has no demonstration")
    return RoundResponse(f"{response.name}/demonstration", prompt.demonstration)

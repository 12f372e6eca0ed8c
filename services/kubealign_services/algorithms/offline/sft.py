"""SFT: supervised fine-tuning."""

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, require_output
from kubealign_services.algorithms.losses.loss_weights import token_mean_shares
from kubealign_services.algorithms.offline.base import OfflineAlgorithm
from kubealign_services.batch.packed import Batch


class CrossEntropyObjective:
    """Mean over response tokens of -log p(token). Reads the token column loss_mask.

    router_coefficient: weight of the load-balancing loss that the training backend adds for a mixture of
    experts; None: that of the model's config.
    """

    outputs = frozenset({"logprobs"})
    unit = 1

    def __init__(self, router_coefficient: float | None = 0.0) -> None:
        self.router_coefficient = router_coefficient

    def prepare(self, minibatch: Batch) -> None:
        minibatch.token_columns["token_shares"] = token_mean_shares(minibatch.token("loss_mask"))

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        logprobs = require_output(outputs.logprobs, "logprobs")
        mask = microbatch.token("loss_mask").bool().to(logprobs.device)
        shares = microbatch.token("token_shares").to(logprobs)
        loss = -(shares[mask] * logprobs[mask]).sum()
        return LossTerms(loss=loss, sums={"sft/loss": loss.detach()})


class SFTAlgorithm(OfflineAlgorithm):
    """Cross-entropy on the demonstrations' responses, with equal weight for every response token (Ouyang et
    al.
    2022, step 1).
    """

    def __init__(self, entry: spec.SFTSpec | spec.CustomOfflineSpec) -> None:
        # An algorithm of another package that derives from this one has parameters of its own.
        self._router_coefficient = entry.router_loss_coefficient if isinstance(entry, spec.SFTSpec) else 0.0

    def policy_objective(self) -> CrossEntropyObjective:
        return CrossEntropyObjective(self._router_coefficient)

"""An objective with a closed-form value."""

from kubealign_services.algorithms.contract import LossTerms, ModelOutputs
from kubealign_services.batch.packed import Batch


class MeanNegativeLogprob:
    """-mean of the log-probabilities of the minibatch's predicted tokens."""

    outputs = frozenset({"logprobs"})
    unit = 1

    def prepare(self, minibatch: Batch) -> None:
        predicted = (minibatch.positions > 0).double()
        minibatch.token_columns["share"] = predicted / predicted.sum()

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        assert outputs.logprobs is not None
        loss = -(outputs.logprobs * microbatch.token("share")).sum()
        return LossTerms(
            loss, {"tokens": (microbatch.positions > 0).sum()}, {"longest": microbatch.lengths.max()}
        )

"""Rewards by a reward model: a packed forward pass, pooled to one number a sequence."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from kubealign.spec.algorithms import Pooling
from kubealign.spec.training import Precision
from kubealign_services.algorithms.pooling import pooled
from kubealign_services.batch.packed import Batch
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.frozen import FrozenModel

#: A forward pass of a model with a score head: batch, names of the outputs wanted -> name -> float32 [T].
Forward: TypeAlias = Callable[[Batch, frozenset[str]], dict[str, Tensor]]


class NonFiniteScore(ArithmeticError):
    """The reward model gave NaN or an infinity. The message names the samples."""


class ModelReward:
    """Scores sequences. pooling: how the model was trained to be read."""

    def __init__(
        self, forward: Forward, pooling: Pooling, offload: Callable[[], object] = lambda: None
    ) -> None:
        self._forward = forward
        self._pooling = pooling
        self._offload = offload

    def offload(self) -> None:
        """Let the model rest on the CPU until the next score."""
        self._offload()

    def score(self, batch: Batch) -> Tensor:
        """float32 [S]. The batch needs `loss_mask` where pooling is ResponseSum. Raises NonFiniteScore."""
        values = self._forward(batch, frozenset({"values"}))["values"]
        scores = pooled(values, batch, self._pooling).float()
        if not bool(scores.isfinite().all()):
            wrong = [batch.sample_ids[i] for i in (~scores.isfinite()).nonzero().flatten().tolist()]
            raise NonFiniteScore(f"the reward model gave no finite score for {', '.join(wrong[:5])}")
        return scores


def load_reward_model(
    folder: Path, precision: Precision, microbatch_tokens: int, rank: int = 0
) -> ModelReward:
    """The reward model of a Hugging Face folder, read as its config says; by its last token, as transformers
    does, where it does not say. Raises what the training backend raises for a folder that holds none."""
    model = FrozenModel.load(folder, Head.SCORE, precision, microbatch_tokens, rank)
    return ModelReward(model.forward, Pooling(model.pooling or Pooling.LAST_TOKEN), model.offload)

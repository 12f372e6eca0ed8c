"""One rank's part of a model: its pipeline stage, its parts of the matrices, and the heads on the last
stage.
"""

from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from torch import Tensor, nn

from kubealign_services.training.megatron_backend.model.heads import OutputHeads
from kubealign_services.training.megatron_backend.model.stage_tokens import StageTokens


class PipelineStage(nn.Module):
    """A pipeline stage.

    The rotary embedding is computed for each token from its position: megatron-core's own numbers packed
    tokens itself and requires each sequence's length to be a multiple of the context ranks.

    Attributes:
        trunk: megatron-core's model.
        heads: On the last stage; None elsewhere.
        inverse_frequencies: fp32 [head size / 2], of the rotary embedding.
    """

    inverse_frequencies: Tensor

    def __init__(self, trunk: GPTModel, heads: OutputHeads | None, inverse_frequencies: Tensor) -> None:
        super().__init__()
        self.trunk = trunk
        self.score = None if heads is None else heads.score
        self.heads = heads
        self.register_buffer("inverse_frequencies", inverse_frequencies, persistent=False)

    @property
    def config(self) -> Any:
        """megatron-core's config, which its schedules read."""
        return self.trunk.config

    @property
    def model_type(self) -> Any:
        """megatron-core's model type, which its schedules read."""
        return self.trunk.model_type

    def weights(self) -> dict[str, nn.Parameter]:
        """Return this rank's parameters by megatron-core's names, and `score.weight`."""
        parameters = dict(self.trunk.named_parameters())
        if self.score is not None:
            parameters["score.weight"] = self.score.weight
        return parameters

    def set_input_tensor(self, given: list[Tensor | None]) -> None:
        """Set the previous stage's output; called by megatron-core's schedules."""
        self.trunk.decoder.set_input_tensor(given[0])

    def forward(self, tokens: StageTokens, outputs: frozenset[str]) -> Tensor | dict[str, Tensor]:
        """Return the hidden states for the next stage, [t, 1, hidden] (t divided among the tensor ranks under
        sequence parallelism); on the last stage the requested columns.
        """
        trunk = self.trunk
        embedded = trunk.embedding(tokens.tokens, None) if trunk.pre_process else None
        angles = tokens.positions[:, None].float() * self.inverse_frequencies
        hidden: Tensor = trunk.decoder(
            hidden_states=embedded,
            attention_mask=None,
            rotary_pos_emb=torch.cat([angles, angles], -1)[:, None, None],
            packed_seq_params=tokens.attention,
        )
        if self.heads is None:
            return hidden
        return self.heads.compute_columns(hidden, self._lm_head_weight(), tokens, outputs)

    def _lm_head_weight(self) -> Tensor | None:
        if self.heads is None or not self.heads.vocabulary:
            return None
        trunk = self.trunk
        tied = trunk.share_embeddings_and_output_weights
        weight: Tensor = trunk.shared_embedding_or_output_weight() if tied else trunk.output_layer.weight
        return weight

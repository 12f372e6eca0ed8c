"""A Hugging Face trunk run on packed sequences, with the heads that a role needs."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kubealign_services.batch.packed import Batch
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.packed_attention import PLAN, AttentionPlan, plan_attention
from kubealign_services.training.torch_backend.token_logprobs import token_logprobs


@dataclass(frozen=True)
class PackedTokens:
    """What a forward pass reads, on the model's device.

    tokens, positions: int64 [1, T]. predicted: int64 [P], the tokens that have one before them in their
    sequence. chosen: int64 [C], those of them whose log-probabilities are wanted.
    temperature: the log-probabilities are of softmax(logits / temperature).
    """

    tokens: Tensor
    positions: Tensor
    predicted: Tensor
    chosen: Tensor
    plan: AttentionPlan
    temperature: float

    @staticmethod
    def of(batch: Batch, device: torch.device) -> "PackedTokens":
        """The batch's tokens, with its scalar `temperature` (default 1). Its column loss_mask chooses, where
        there is one."""
        positions = batch.positions
        mask = batch.token_columns.get("loss_mask")
        chosen = positions > 0 if mask is None else (positions > 0) & (mask != 0)
        temperature = float(batch.scalars.get("temperature", 1.0))
        if not temperature > 0:
            raise ValueError(f"scalar temperature is {temperature}; it is above 0")
        return PackedTokens(
            tokens=batch.tokens.long()[None].to(device),
            positions=positions[None].to(device),
            predicted=positions.nonzero()[:, 0].to(device),
            chosen=chosen.nonzero()[:, 0].to(device),
            plan=plan_attention(batch.cu_seqlens, device),
            temperature=temperature,
        )


class PackedModel(nn.Module):
    """backbone: a causal language model, or a bare trunk. score: the scalar head [1, hidden], where there is
    one.

    The forward pass gives the columns of `ModelOutputs` that are asked for, each [T] in at least fp32, by
    name (a dict, so that the tensors can be found by whoever hooks into the module).
    """

    def __init__(self, backbone: PreTrainedModel, head: Head, score: nn.Linear | None) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.score = score

    @property
    def vocabulary(self) -> nn.Linear | None:
        """The vocabulary's head; None for a bare trunk."""
        if self.backbone.base_model is self.backbone:
            return None
        head = self.backbone.get_output_embeddings()  # type: ignore[no-untyped-call]
        return head if isinstance(head, nn.Linear) else None

    def check(self, batch: Batch, outputs: frozenset[str]) -> None:
        """Raises ValueError where the batch holds tokens or positions that the model does not have, or an
        output is asked for that no head gives."""
        config = self.backbone.config.get_text_config()
        lowest, highest = int(batch.tokens.min()), int(batch.tokens.max())
        if lowest < 0 or highest >= config.vocab_size:
            raise ValueError(
                f"the batch holds token {lowest if lowest < 0 else highest}; "
                f"the model's vocabulary has {config.vocab_size}"
            )
        most = getattr(config, "max_position_embeddings", None)
        longest = int(batch.lengths.max())
        if most is not None and longest > most:
            raise ValueError(
                f"the batch holds a sequence of {longest} tokens; the model has {most} positions"
            )
        given = ({"values"} if self.score is not None else set()) | (
            {"logprobs", "entropy"} if self.vocabulary is not None else set()
        )
        if not outputs <= given:
            raise ValueError(
                f"outputs {sorted(outputs - given)} were asked for; a {self.head} model gives {sorted(given)}"
            )

    def forward(self, packed: PackedTokens, outputs: frozenset[str]) -> dict[str, Tensor]:
        """The columns asked for. Those of a value head are moved one on: at a token, the value of the state
        before it."""
        hidden = self.backbone.base_model(
            input_ids=packed.tokens, position_ids=packed.positions, use_cache=False, **{PLAN: packed.plan}
        ).last_hidden_state[0]
        wide = torch.promote_types(hidden.dtype, torch.float32)
        columns: dict[str, Tensor] = {}
        if outputs & {"logprobs", "entropy"}:
            vocabulary = self.vocabulary
            assert vocabulary is not None
            logprobs, entropy = token_logprobs(
                hidden[packed.chosen - 1],
                vocabulary.weight,
                vocabulary.bias,
                packed.tokens[0, packed.chosen],
                packed.temperature,
                "entropy" in outputs,
            )
            columns = {
                "logprobs": _spread(logprobs, packed.chosen, packed),
                "entropy": _spread(entropy, packed.chosen, packed),
            }
        if "values" in outputs:
            assert self.score is not None
            weight = self.score.weight[0].to(wide)
            if self.head is Head.VALUE:
                values = hidden[packed.predicted - 1].to(wide) @ weight
                columns["values"] = _spread(values, packed.predicted, packed)
            else:
                columns["values"] = hidden.to(wide) @ weight
        return {name: columns[name] for name in sorted(outputs)}


def _spread(values: Tensor, places: Tensor, packed: PackedTokens) -> Tensor:
    """One for each place -> [T], with 0 elsewhere."""
    zeros = torch.zeros(packed.tokens.shape[1], dtype=values.dtype, device=values.device)
    return zeros.index_add(0, places, values)

"""A mixture of experts computed token by token in float64, with given experts: an independent check of what
the engine records and the trainer replays.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu
from transformers import AutoModelForCausalLM


class SlowExperts:
    """transformers' model in float64 whose layers with experts are replaced by loops over tokens and experts.

    chosen: int64 [layers, tokens, k], the experts of the last pass.
    """

    def __init__(self, folder: Path) -> None:
        make: Callable[..., Any] = AutoModelForCausalLM.from_pretrained
        model = make(folder, dtype=torch.float64, attn_implementation="eager", local_files_only=True)
        self.model = model.eval()
        # Mixtral's routers always divide the gate weights by their sum.
        self._normalises = bool(getattr(model.config, "norm_topk_prob", True))
        self._top_k = int(model.config.num_experts_per_tok)
        self._given: Tensor | None = None
        self._chosen: list[Tensor] = []
        for layer in model.model.layers:
            layer.mlp.forward = self._block(layer.mlp)

    @property
    def chosen(self) -> Tensor:
        return torch.stack(self._chosen)

    def logprobs(self, sequence: list[int], experts: Tensor | None = None) -> Tensor:
        """Return the log-probability of each token of a sequence but the first, differentiable.

        Args:
            experts: int64 [layers, tokens, k]; -1 at tokens that the routers route; None: they route all.
        """
        self._given, self._chosen = experts, []
        logits = self.model(torch.tensor([sequence]), use_cache=False).logits[0, :-1]
        logprobs: Tensor = torch.log_softmax(logits, -1).gather(1, torch.tensor(sequence[1:])[:, None])[:, 0]
        return logprobs

    def _block(self, block: Any) -> Callable[[Tensor], Tensor]:
        def forward(states: Tensor) -> Tensor:
            layer, tokens = len(self._chosen), states[0]
            probabilities = torch.softmax(tokens @ block.gate.weight.T, -1)
            experts = probabilities.topk(self._top_k).indices
            if self._given is not None:
                given = self._given[layer]
                experts = torch.where(given < 0, experts, given)
            self._chosen.append(experts)
            rows = [
                self._token(block.experts, token, of_token, chosen.tolist())
                for token, of_token, chosen in zip(tokens, probabilities, experts, strict=True)
            ]
            return torch.stack(rows)[None]

        return forward

    def _token(self, stacked: Any, token: Tensor, probabilities: Tensor, experts: list[int]) -> Tensor:
        weights = probabilities[experts]
        if self._normalises:
            weights = weights / weights.sum()
        total = torch.zeros_like(token)
        for weight, expert in zip(weights, experts, strict=True):
            gate, up = (stacked.gate_up_proj[expert] @ token).chunk(2)
            total = total + weight * (stacked.down_proj[expert] @ (silu(gate) * up))
        return total

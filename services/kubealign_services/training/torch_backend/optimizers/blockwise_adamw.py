"""AdamW with 8-bit moments by bitsandbytes: one byte per value and moment, and an fp32 scale per block of 256
values (Dettmers et al. 2022, 8-bit Optimizers via Block-wise Quantization).
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from kubealign.spec.sections.optimizers import BLOCK_VALUES
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.training.torch_backend.optimizers.update_rules import DecayGroup


def require_bitsandbytes() -> None:
    """Raise PermanentFailure when the package of the 8-bit moments cannot be imported."""
    if find_spec("bitsandbytes") is None:
        raise PermanentFailure(
            "optimizer.adamW.states is Blockwise8Bit, and bitsandbytes is not installed where the trainer "
            "runs: pip install 'kubealign[bitsandbytes]', or write Float32"
        )


class BlockwiseAdamWRule:
    """AdamW with 8-bit moments over contiguous tensors, whose blocks begin anew in each tensor."""

    def __init__(self, groups: Sequence[DecayGroup], betas: tuple[float, float], epsilon: float) -> None:
        """Create bitsandbytes' AdamW8bit.

        Raises PermanentFailure without the package, and ValueError for a tensor that is not contiguous, of
        which bitsandbytes would update a copy.
        """
        require_bitsandbytes()
        for group in groups:
            for tensor in group.tensors:
                if not tensor.is_contiguous():
                    raise ValueError(
                        f"a weight of shape {tuple(tensor.shape)} is not contiguous in memory, which "
                        "optimizer.adamW.states Blockwise8Bit requires: write Float32"
                    )
        from bitsandbytes.optim import AdamW8bit

        # A rank without a row of a weight has an empty shard, for which a GPU kernel cannot be started.
        owned = [
            DecayGroup([each for each in group.tensors if each.numel()], group.weight_decay)
            for group in groups
        ]
        self.optimizer: Any = AdamW8bit(
            [group.as_param_group() for group in owned],
            lr=0.0,  # each step sets its own
            betas=betas,
            eps=epsilon,
            # The caller selects the weights by the size of the whole weight, not of this rank's shard.
            min_8bit_size=0,
        )

    def state_shapes(self, tensor: Tensor) -> dict[str, torch.Size]:
        """See UpdateRule. The maps of the 8-bit values to numbers are constants."""
        blocks = torch.Size([-(-tensor.numel() // BLOCK_VALUES)])
        return {
            "step": torch.Size(),
            "state1": tensor.shape,
            "state2": tensor.shape,
            "absmax1": blocks,
            "absmax2": blocks,
        }

    def saved_state(self, tensor: Tensor) -> dict[str, Tensor]:
        """See UpdateRule."""
        state = self.optimizer.state.get(tensor)
        if not state:
            return {}
        names = self.state_shapes(tensor)
        return {name: torch.as_tensor(state[name]) for name in names}

    def restore_state(self, tensor: Tensor, saved: Mapping[str, Tensor]) -> None:
        """See UpdateRule."""
        self.optimizer.state.pop(tensor, None)
        if not saved:
            return
        groups = self.optimizer.param_groups
        index, position, group = next(
            (index, position, group)
            for index, group in enumerate(groups)
            for position, member in enumerate(group["params"])
            if member is tensor
        )
        self.optimizer.init_state(group, tensor, index, position)
        state = self.optimizer.state[tensor]
        state["step"] = int(saved["step"])
        for name in ("state1", "state2", "absmax1", "absmax2"):
            state[name].copy_(saved[name])

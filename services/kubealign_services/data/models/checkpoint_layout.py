"""Layout of a model's weights in its Hugging Face checkpoint, where it differs from that in memory.

transformers 5 renames parameters when it loads a checkpoint and stacks the matrices of experts;
transformers 4 keeps the checkpoint's layout.
"""

from collections.abc import Mapping

import transformers
from torch import Tensor
from transformers import PreTrainedModel

#: Major version of the transformers of this process.
TRANSFORMERS_MAJOR = int(transformers.__version__.partition(".")[0])


def has_converted_layout(model: PreTrainedModel) -> bool:
    """Return True when the checkpoint stores the weights in another layout than the model."""
    return bool(getattr(model, "_weight_conversions", None))


def to_checkpoint_layout(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights by the names, and in the pieces, of the checkpoint that transformers would write.

    Raises ValueError for a model of transformers 4 that renames its parameters.

    Args:
        model: Model of the weights.
        weights: Weights by their names in the model.
    """
    if TRANSFORMERS_MAJOR < 5:
        renamed = getattr(model, "_checkpoint_conversion_mapping", None)
        if renamed:
            raise ValueError(
                f"{type(model).__name__} has other names for its weights than its checkpoint "
                f"({', '.join(sorted(renamed))}), which is supported with transformers 5 only"
            )
        return dict(weights)
    # A module of transformers 5.
    from transformers.core_model_loading import revert_weight_conversion

    return dict(revert_weight_conversion(model, dict(weights)))

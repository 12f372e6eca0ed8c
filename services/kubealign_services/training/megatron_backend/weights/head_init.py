"""Selects the heads of a folder's model, and initialises the score head.

Semantics and seeds match `torch_backend.model.loading.load_model`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig

from kubealign.spec.sections.training import HeadInit
from kubealign_services.training.contract import Head
from kubealign_services.training.files.hf_heads import (
    check_model_folder,
    check_score_names,
    check_value_head,
    init_score_head,
    is_reward_model,
    merge_heads,
    not_a_language_model,
    not_a_reward_model,
    score_names,
)
from kubealign_services.training.megatron_backend.weights.conversion import HeadSizes
from kubealign_services.training.megatron_backend.weights.load_hf import read_tensor


@dataclass(frozen=True)
class InitialHead:
    """Initial head of a model.

    Attributes:
        sizes: Heads on the trunk.
        score: fp32 [N, hidden] when the score head is not read from the folder.
    """

    sizes: HeadSizes
    score: Tensor | None

    @property
    def initialised_parameters(self) -> frozenset[str]:
        """Parameters that `load_weights` does not read."""
        return frozenset() if self.score is None else frozenset({"score.weight"})


def read_config(folder: Path) -> Any:
    """Read the folder's config. Raises ValueError for a folder without one."""
    check_model_folder(folder)
    return AutoConfig.from_pretrained(folder, local_files_only=True)


def initial_head(
    folder: Path,
    config: Any,
    head: Head,
    head_init: HeadInit = HeadInit.ZERO,
    seed: int = 0,
    scores: Sequence[str] = (),
    attributes: Mapping[str, float] | None = None,
) -> InitialHead:
    """Select the heads; arguments and errors as for `torch_backend.model.loading.load_model`.

    Args:
        config: The folder's config.
    """
    is_classifier = is_reward_model(config)
    if head is Head.LANGUAGE_MODEL or (head is Head.SCORE and not is_classifier):
        if is_classifier:
            raise not_a_language_model(folder, config)
        if head is Head.LANGUAGE_MODEL:
            return InitialHead(HeadSizes(), None)
        count = max(1, len(scores))
        return InitialHead(HeadSizes(scores=count), init_score_head(config, count, seed))
    if is_classifier and (head is Head.SCORE or head_init is HeadInit.REWARD_MODEL):
        if head is Head.VALUE:
            check_value_head(folder, config, attributes)
            merged = merge_heads(read_tensor(folder, "score.weight").float(), score_names(config), attributes)
            return InitialHead(HeadSizes(vocabulary=False, scores=1), merged)
        check_score_names(folder, config, scores)
        return InitialHead(HeadSizes(vocabulary=False, scores=config.num_labels), None)
    if head_init is HeadInit.REWARD_MODEL:
        raise not_a_reward_model(folder, config)
    return InitialHead(HeadSizes(vocabulary=False, scores=1), torch.zeros(1, config.hidden_size))

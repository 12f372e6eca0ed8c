"""Two ranks can share the tokens of a model of every supported type."""

import json
from pathlib import Path

import pytest

from kubealign.spec.model_types import SUPPORTED_TYPES
from support.context_ranks import check_model_types
from support.forked_ranks import RankFactory
from support.free_address import free_address
from support.model_families import FAMILIES, other_model


@pytest.mark.timeout(290)
def test_ranks_that_share_tokens_compute_the_states_of_one(tmp_path: Path) -> None:
    """The check at the start of a training compares them."""
    for model_type in SUPPORTED_TYPES:
        model = FAMILIES[model_type] if model_type in FAMILIES else other_model(model_type)
        model.save(tmp_path / "models" / model_type)
    rendezvous = free_address()
    ranks = [(rank, rendezvous, tmp_path / "models", tmp_path) for rank in range(2)]
    with RankFactory([check_model_types.__module__]) as factory:
        codes = factory.run(f"{check_model_types.__module__}:{check_model_types.__name__}", ranks, 200)
    assert codes == [0, 0]
    for rank in range(2):
        errors = json.loads((tmp_path / f"types-{rank}.json").read_text())
        assert errors == dict.fromkeys(SUPPORTED_TYPES, "")

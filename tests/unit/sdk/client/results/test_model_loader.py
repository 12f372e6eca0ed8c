"""Errors of loading a result that is not a model."""

from pathlib import Path

import pytest

from kubealign.client.errors import NotPossible
from kubealign.client.results.model_loader import load_result


def test_rows_are_not_loaded_as_a_model(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"prompt": "a"}\n')
    with pytest.raises(
        NotPossible, match=r"holds rows, not a model: read .*data\.jsonl, one JSON object a line"
    ):
        load_result(tmp_path)

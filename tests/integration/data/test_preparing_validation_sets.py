"""Preparation of the rows of validation sets."""

import json
from pathlib import Path
from typing import Any

import pytest

from kubealign_services.data.errors import DataError
from kubealign_services.data.preparation import prepare
from kubealign_services.data.prepared import load_prepared
from support.preparing import CHARACTERS, from_config, job, rows

pytestmark = pytest.mark.timeout(120)

CONTEXT = 32


def prompts(folder: Path, name: str, *lines: dict[str, Any]) -> dict[str, Any]:
    return {"prompts": rows(folder, list(lines), f"{name}.jsonl")}


def document(folder: Path, *sets: dict[str, Any], **validation: Any) -> dict[str, Any]:
    train = prompts(folder, "train", {"prompt": "abc", "target": "b"}, {"prompt": "long" * 5, "target": "c"})
    return {
        "algorithm": {"rloo": {"promptsPerStep": 1, "samplesPerPrompt": 2}},
        "policy": {"model": from_config(CHARACTERS, max_position_embeddings=CONTEXT)},
        "data": train,
        "rewards": [{"name": "same", "verifier": {"regex": {"pattern": ".", "answerColumn": "target"}}}],
        "rollout": {"sampling": {"maxTokens": 4}},
        "validation": {"sets": list(sets)} | validation,
    }


def prompt_set(folder: Path, name: str, **fields: Any) -> dict[str, Any]:
    texts = (f"{name}b", "bc" * 8)
    return {
        "name": name,
        "data": prompts(folder, name, *({"prompt": t, "kind": name} for t in texts)),
    } | fields


def test_each_set_has_a_file_of_its_own_and_room_for_its_own_responses(tmp_path: Path) -> None:
    sets = (
        prompt_set(tmp_path, "a", groupBy="kind"),
        prompt_set(tmp_path, "c", sampling={"maxTokens": CONTEXT - 8}),
    )
    run_dir = tmp_path / "run"
    prepared = prepare(job(document(tmp_path, *sets)), run_dir, {})
    assert prepared.validation is None and prepared.report.validation is None
    assert [row.prompt_text for row in prepared.validation_sets["a"]] == ["ab", "bc" * 8]
    # With responses of 24 tokens 8 tokens of the context are left for a prompt.
    assert [row.prompt_text for row in prepared.validation_sets["c"]] == ["cb"]
    assert [part.rows_kept for part in prepared.report.parts] == [2, 2, 1]
    assert (run_dir / "prepared" / "validation-c.parquet").exists()
    assert len(load_prepared(run_dir).validation_sets["a"]) == 2


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"groupBy": "kin"}, r"spec\.validation\.sets\[0\]\.groupBy: .* no column 'kin'"),
        ({"rewards": ["same"]}, r"spec\.rewards\[0\]\.verifier\.regex\.answerColumn: .* no column 'target'"),
        (
            {"sampling": {"scores": [{"name": "right", "verifier": {"math": {}}}]}},
            r"spec\.validation\.sets\[0\]\.sampling\.scores\[0\]\.verifier\.math\.answerColumn: .* 'answer'",
        ),
        (
            {"sampling": {"maxTokens": CONTEXT}},
            r"spec\.validation\.sets\[0\]\.sampling\.maxTokens \(32\) leaves no room for a prompt",
        ),
    ],
)
def test_what_a_set_lacks_is_an_error_of_its_field(
    tmp_path: Path, fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        prepare(job(document(tmp_path, prompt_set(tmp_path, "a", **fields))), tmp_path / "run", {})


def test_a_preparation_without_sets_is_reused_and_one_with_other_sets_is_refused(tmp_path: Path) -> None:
    own = prompt_set(tmp_path, "a")
    run_dir = tmp_path / "run"
    prepare(job(document(tmp_path, own)), run_dir, {})
    with pytest.raises(DataError, match=r"spec\.validation\.sets\[0\]\.data\.prompts\.limit was null, is 1"):
        limited = {"prompts": own["data"]["prompts"] | {"limit": 1}}
        prepare(job(document(tmp_path, own | {"data": limited})), run_dir, {})

    # Preparations of earlier versions know data and groupBy alone.
    earlier = tmp_path / "earlier"
    without_sets = job(document(tmp_path, data=document(tmp_path)["data"]))
    prepare(without_sets, earlier, {})
    file = earlier / "prepared" / "inputs.json"
    inputs = json.loads(file.read_text())
    inputs["validation"] = {name: inputs["validation"][name] for name in ("data", "groupBy")}
    file.write_text(json.dumps(inputs))
    assert len(prepare(without_sets, earlier, {}).validation or ()) == 2

"""The API server and the Pydantic models agree on jobs: rejections, defaults and stored fields."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import ValidationError

from cluster.support.control_plane import ControlPlane
from cluster.support.door import Door, Job, Refused
from cluster.support.kubectl import KubectlFailed
from kubealign.spec.field_lookup import document_fields
from kubealign.spec.job import AlignmentJob
from kubealign.spec.loading.yaml_documents import parse_documents
from kubealign.spec.status import AlignmentJobStatus
from support.bad_specs import ALGORITHMS, BAD, bad_job, name_of, whole_job
from support.spec_values import jobs

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = sorted(
    path for path in (REPOSITORY / "examples").glob("*/*.yaml") if "kind: AlignmentJob" in path.read_text()
)


def read(job: Job) -> AlignmentJob:
    """Parse a job with the models. Raises ValidationError."""
    return AlignmentJob.model_validate_json(json.dumps(job), strict=True, by_alias=True, by_name=False)


def spec_of(stored: Job) -> Any:
    return read({key: stored[key] for key in ("apiVersion", "kind", "metadata", "spec")}).spec


#: Rows with `admitted` violate rules beyond a schema: the API server admits them, the operator rejects them.
REFUSED = [row for row in BAD if not {"server_accepts", "admitted"} & row.keys()]

HELD_OUT = {"prompts": {"source": {"path": "/held-out.jsonl"}}}


def test_the_table_is_long_enough() -> None:
    assert len(REFUSED) >= 100


def test_what_the_models_refuse_is_refused_and_the_field_named(door: Door) -> None:
    wrong = []
    for row in REFUSED:
        try:
            door.admit(bad_job(row))
            wrong.append(f"{name_of(row)}: accepted")
        except Refused as refusal:
            if row.get("server", row["path"]) not in str(refusal):
                wrong.append(f"{name_of(row)}: {refusal}")
    assert wrong == [], "\n".join(wrong)


@pytest.mark.parametrize(
    "validation",
    [
        {"data": HELD_OUT},
        {"sets": [{"name": "held", "data": HELD_OUT, "atStart": True, "rewards": ["exact"]}]},
        {"sets": [{"name": "sums", "preset": {"benchmark": "Gsm8k"}}, {"name": "held", "data": HELD_OUT}]},
        {"data": HELD_OUT, "sets": [{"name": "sums", "preset": {"benchmark": "Gsm8k"}}]},
    ],
    ids=["data", "set", "preset", "both"],
)
def test_an_evaluation_needs_no_data(validation: dict[str, Any], door: Door) -> None:
    job = whole_job("rloo", {"spec.algorithm": {"evaluate": {}}, "spec.validation": validation})
    job["spec"]["rewards"][0]["scope"] = "Group"
    del job["spec"]["data"], job["spec"]["maxSteps"]
    spec = spec_of(door.admit(job))
    assert spec == read(job).spec
    assert spec.data == spec.held_out_rows[0].data


@pytest.mark.parametrize("row", [row for row in BAD if "server_accepts" in row], ids=name_of)
def test_rows_that_the_api_server_reads_differently(row: Job, door: Door) -> None:
    stored = spec_of(door.admit(bad_job(row)))
    assert stored == read(whole_job(row["job"])).spec, row["server_accepts"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_defaults_are_the_models(algorithm: str, door: Door) -> None:
    job = whole_job(algorithm)
    stored = door.admit(job)
    assert spec_of(stored) == read(job).spec
    # The server fills in the defaults, not the models on reading.
    filled = read(job).spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert json.loads(json.dumps(stored["spec"])) == filled


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_examples_are_accepted(path: Path, door: Door) -> None:
    documents, errors = parse_documents(path.read_text(), {"DATA": "/data", "MODELS": "/models"}, set())
    assert errors == []
    written = [document for document in documents if document.value["kind"] == "AlignmentJob"]
    assert written
    for document in written:
        assert spec_of(door.admit(document.value)) == read(document.value).spec


def test_server_and_models_agree_on_any_job(door: Door) -> None:
    counted = {True: 0, False: 0}

    @settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(jobs())
    def agree(job: Job) -> None:
        try:
            mine = read(job).spec
        except ValidationError as error:
            counted[False] += 1
            with pytest.raises(Refused):
                door.admit(deepcopy(job))
                pytest.fail(f"accepted, but for the models: {error}\n{json.dumps(job)}")
        else:
            counted[True] += 1
            assert spec_of(door.admit(deepcopy(job))) == mine

    agree()
    assert min(counted.values()) > 50, counted


def test_a_name_that_no_service_can_have_is_refused(door: Door) -> None:
    for name, says in (
        ("x" * 53, "at most 52 characters"),
        ("a.b", "letter first"),
        ("1st", "letter first"),
        ("Sums", "metadata.name"),
    ):
        with pytest.raises(Refused, match=says):
            door.admit(whole_job("sft", {"metadata.name": name}))


def test_kubectl_knows_short_name_category_and_columns(
    control_plane: ControlPlane, door: Door, namespace: str
) -> None:
    door.create(whole_job("sft"))
    status = {
        "phase": "Running",
        "step": 7,
        "reward": 0.25,
        "kl": 1.5,
        "weightVersion": 8,
        "message": "all is well",
    }
    patch = json.dumps({"status": status})
    control_plane.kubectl(
        "patch", "aj", "sft", "-n", namespace, "--subresource=status", "--type=merge", "-p", patch
    )
    head, row = control_plane.kubectl("get", "aj", "-n", namespace).splitlines()
    assert head.split() == ["NAME", "PHASE", "STEP", "REWARD", "AGE"]
    assert row.split()[:4] == ["sft", "Running", "7", "0.25"]
    head, row = control_plane.kubectl("get", "kubealign", "-n", namespace, "-o", "wide").splitlines()
    assert head.split() == ["NAME", "PHASE", "STEP", "REWARD", "AGE", "KL", "WEIGHTS", "MESSAGE"]
    assert row.split()[5:] == ["1.5", "8", "all", "is", "well"]
    explained = control_plane.kubectl("explain", "aj.spec.rollout.replicas")
    assert "Workers; with placement WithTrainer" in explained


def test_every_field_of_the_status_can_be_stored(
    control_plane: ControlPlane, door: Door, namespace: str
) -> None:
    now = "2026-01-02T03:04:05Z"
    condition = {"type": "Ready", "status": "True", "reason": "Served", "lastTransitionTime": now}
    status = {
        "observedGeneration": 1,
        "phase": "Failed",
        "message": "why",
        "step": 1,
        "maxSteps": 2,
        "reward": -1.5,
        "kl": 0.0,
        "weightVersion": 3,
        "image": "kubealign-services:1",
        "startTime": now,
        "completionTime": now,
        "activeSince": now,
        "startingSince": now,
        "activeSeconds": 1.5,
        "restartsSinceStep": 0,
        "restarts": 1,
        "retry": "once",
        "attempts": {"trainer": 1},
        "dependencies": [{"name": "base", "claimName": "runs", "path": "base/result"}],
        "roles": [{"name": "trainer", "replicas": 1, "ready": 0}],
        "rolloutReplicas": 0,
        "selector": "a=b",
        "conditions": [condition | {"message": "", "observedGeneration": 1}],
        "result": {"claimName": "runs", "path": "sums/result"},
        "checkpointSource": {"claimName": "runs", "path": "base-1a2b3c4d"},
        "credentials": {
            "secretName": "sft-credentials-2",
            "generation": 2,
            "issuedAt": now,
            "expiresAt": now,
            "renewalRequest": "once",
        },
        "startTurn": {"waitingSince": now, "heldSince": now, "endedAt": now, "lost": "no node for pod sft-0"},
        "document": {"generation": 2, "digest": "5d1c2ab0-5f3f5d1c2ab07e61"},
    }
    assert set(status) == set(document_fields(AlignmentJobStatus))
    door.create(whole_job("sft"))
    patch = json.dumps({"status": status})
    change = ["patch", "aj", "sft", "-n", namespace, "--subresource=status", "--type=merge", "-p"]
    control_plane.kubectl(*change, patch)
    assert door.patch("sft", {})["status"] == status
    with pytest.raises(KubectlFailed, match=r'status\.phase: Unsupported value: "Lost"'):
        control_plane.kubectl(*change, json.dumps({"status": {"phase": "Lost"}}))

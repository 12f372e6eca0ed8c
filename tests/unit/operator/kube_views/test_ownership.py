"""The owner of an object is its controller reference."""

from typing import Any

import pytest

from kubealign_operator.kube_views.ownership import owner_uid
from kubealign_operator.kube_views.pod_view import pod_view

_OWNER = {"apiVersion": "kubealign.dev/v1alpha1", "kind": "AlignmentJob", "uid": "job", "controller": True}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "job"),
        ({"apiVersion": "kubealign.dev/v1"}, "job"),
        ({"apiVersion": "example.org/v1alpha1"}, None),
        ({"apiVersion": "v1"}, None),
        ({"apiVersion": "kubealign.dev"}, None),
        ({"apiVersion": None}, None),
        ({"kind": "Job"}, None),
        ({"controller": False}, None),
        ({"controller": None}, None),
        ({"controller": "true"}, None),
        ({"uid": ""}, None),
    ],
)
def test_the_controller_must_be_an_alignment_job_of_the_group(
    changes: dict[str, Any], expected: str | None
) -> None:
    metadata = {"ownerReferences": [{"kind": "Other", "controller": False}, {**_OWNER, **changes}]}
    assert owner_uid(metadata) == expected
    assert pod_view({"metadata": metadata}).owner_uid == (expected or "")


@pytest.mark.parametrize("references", [None, [], "text", [None, 3]])
def test_an_object_without_references_has_no_owner(references: object) -> None:
    assert owner_uid({"ownerReferences": references}) is None

"""Exceptions for error responses of the API server."""

import json
from typing import Any

import pytest

from kubealign.errors import (
    Conflict,
    Forbidden,
    JobExists,
    JobInvalid,
    JobNotFound,
    KubealignError,
    NotPossible,
    Unauthenticated,
    Unavailable,
)
from kubealign.kube.errors import ApiCall, ErrorResponse, ObjectNotFound, WatchExpired, user_error

JOBS = "/apis/kubealign.dev/v1alpha1/namespaces/team/alignmentjobs"
ONE = f"{JOBS}/one"
SERVER = "https://cluster.test"


def refused(verb: str, path: str, code: int, **fields: Any) -> KubealignError:
    body = json.dumps({"kind": "Status", "status": "Failure", "code": code, **fields}).encode()
    return user_error(ApiCall(verb, path), ErrorResponse(SERVER, code, body))


@pytest.mark.parametrize(
    ("verb", "path", "expected"),
    [
        ("get", ONE, "get alignmentjobs one in namespace team"),
        ("patch", f"{ONE}/scale", "patch alignmentjobs/scale one in namespace team"),
        ("list", "/apis/kubealign.dev/v1alpha1/alignmentjobs", "list alignmentjobs in every namespace"),
        ("get", "/api/v1/namespaces/a%2Fb/pods/x/log", "get pods/log x in namespace a/b"),
        ("create", "/apis/authentication.k8s.io/v1/tokenreviews", "create tokenreviews in every namespace"),
        ("get", "/api/v1/namespaces/team", "get namespaces team in every namespace"),
    ],
)
def test_call_describes_itself(verb: str, path: str, expected: str) -> None:
    assert str(ApiCall(verb, path)) == expected


def test_each_status_has_its_exception() -> None:
    details = {"name": "one", "kind": "alignmentjobs"}
    assert isinstance(refused("get", ONE, 404, reason="NotFound", details=details), JobNotFound)
    assert isinstance(refused("create", JOBS, 409, reason="AlreadyExists", details=details), JobExists)
    assert isinstance(refused("delete", ONE, 409, reason="Conflict", details=details), Conflict)
    assert isinstance(refused("get", ONE, 401), Unauthenticated)
    assert isinstance(refused("get", ONE, 403, message='User "x" cannot get'), Forbidden)
    assert isinstance(refused("get", ONE, 429), Unavailable)
    assert isinstance(refused("get", ONE, 500), Unavailable)
    assert isinstance(refused("watch", JOBS, 410, reason="Expired"), WatchExpired)
    assert isinstance(refused("get", ONE, 418), NotPossible)
    pod = "/api/v1/namespaces/team/pods/one-driver"
    assert isinstance(
        refused("get", pod, 404, details={"name": "one-driver", "kind": "pods"}), ObjectNotFound
    )
    assert isinstance(refused("create", f"{pod}/exec", 400), NotPossible)


def test_missing_resource_type_is_not_a_missing_job() -> None:
    text = user_error(ApiCall("get", ONE), ErrorResponse(SERVER, 404, b"404 page not found\n"))
    assert isinstance(text, NotPossible) and "helm install" in str(text)


def test_missing_namespace_is_an_invalid_job() -> None:
    error = refused("create", JOBS, 404, details={"name": "team", "kind": "namespaces"})
    assert isinstance(error, JobInvalid)
    assert [(values.path, values.value) for values in error.errors] == [("metadata.namespace", "team")]


def test_causes_become_field_errors_with_values() -> None:
    causes = [
        {"field": "spec.seed", "message": 'Invalid value: "object": cannot be changed'},
        {"field": "spec.maxSteps", "message": "Invalid value: 0: spec.maxSteps in body should be at least 1"},
        {"field": "spec.a", "message": 'Invalid value: "x:y": must be "z"'},
        {"field": "spec.b", "message": 'Invalid value: "string": spec.b in body must be of type boolean'},
        {
            "field": "<nil>",
            "message": "some validation rules were not checked because the object was invalid",
        },
        {"field": "patch", "message": 'strict decoding error: unknown field "spec.sed"'},
        {"field": "spec.c", "message": "Required value"},
    ]
    error = refused(
        "patch",
        ONE,
        422,
        reason="Invalid",
        message='strict decoding error: unknown field "spec.sed"',
        details={"name": "one", "causes": causes},
    )
    assert isinstance(error, JobInvalid)
    assert [(values.path, values.value, values.message) for values in error.errors] == [
        ("spec.seed", "", "cannot be changed"),
        ("spec.maxSteps", "0", "should be at least 1"),
        ("spec.a", '"x:y"', 'must be "z"'),
        ("spec.b", "", "must be of type boolean"),
        ("spec.c", "", "Required value"),
        (
            "spec.sed",
            "",
            "the kubealign version of this cluster has no such field: upgrade it, or remove the field",
        ),
    ]
    assert "one: spec.maxSteps: should be at least 1 (it holds 0)" in str(error)


def test_missing_permissions_differ_from_admission_rules() -> None:
    rights = refused("create", JOBS, 403, reason="Forbidden", message='User "x" cannot create resource')
    quota = refused("create", JOBS, 403, reason="Forbidden", message="exceeded quota: tight")
    assert "`edit`" in str(rights)
    assert "the admission rules of the cluster" in str(quota) and "exceeded quota" in str(quota)


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b'{"details": null}', b"\xff"])
def test_any_response_body_becomes_a_client_error(body: bytes) -> None:
    for status in (400, 401, 403, 404, 409, 410, 422, 429, 500, 502, 599):
        assert isinstance(
            user_error(ApiCall("create", JOBS), ErrorResponse(SERVER, status, body)),
            KubealignError,
        )

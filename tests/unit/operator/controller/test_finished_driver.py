"""The driver whose end makes the operator read a job's progress once more."""

from typing import Any

from kubealign.spec.job import API_VERSION, KIND
from kubealign_operator.controller.reconciler import has_driver_finished
from kubealign_operator.kube_views.observed_job import PodView
from kubealign_operator.kube_views.pod_view import pod_view

_UID = "6f1f7d0e"


def _pod(process: str, attempt: int, phase: str, owner: str = _UID) -> PodView:
    labels = {"kubealign.dev/process": process, "kubealign.dev/attempt": str(attempt)}
    reference: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "uid": owner, "controller": True}
    metadata = {"name": f"sft-{process}-{attempt}", "labels": labels, "ownerReferences": [reference]}
    return pod_view({"metadata": metadata, "status": {"phase": phase}})


def test_the_newest_driver_decides() -> None:
    kept, running = _pod("driver", 9, "Failed"), _pod("driver", 10, "Running")
    assert not has_driver_finished([running, kept], _UID)
    assert has_driver_finished([kept], _UID)
    assert has_driver_finished([kept, _pod("driver", 10, "Succeeded")], _UID)


def test_other_pods_do_not_count() -> None:
    others = [_pod("trainer-0", 0, "Failed"), _pod("driver", 0, "Failed", owner="another")]
    assert not has_driver_finished(others, _UID)
    assert not has_driver_finished([], _UID)

"""PersistentVolumeClaims that the pods of a job mount."""

from kubealign.spec.dependencies import dependency_names
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import DependencyResult
from kubealign_operator.manifests.volume_claims import volume_claims


def test_every_model_of_an_ensemble_is_mounted() -> None:
    models = [
        {"volume": {"claimName": "models", "path": "one"}},
        {"volume": {"claimName": "others", "path": "two"}},
        {"job": {"name": "three"}},
    ]
    job = AlignmentJob.model_validate(
        {
            "metadata": {"name": "annotated"},
            "spec": {
                "maxSteps": 1,
                "algorithm": {"annotate": {}},
                "policy": {"model": {"path": "/image/model"}},
                "data": {"demonstrations": {"source": {"volume": {"claimName": "data", "path": "x.jsonl"}}}},
                "rewards": [{"name": "both", "ensemble": {"models": models}}],
                "checkpoint": {"volume": {"claimName": "runs"}},
            },
        }
    )
    assert dependency_names(job) == {"three"}
    three = DependencyResult(name="three", claim_name="results", path="three/result")
    written = {"data": False, "models": False, "others": False, "results": False, "runs": True}
    assert volume_claims(job, [three]) == written


def test_every_source_of_a_mixture_is_mounted() -> None:
    mixture = [
        {"name": "one", "source": {"volume": {"claimName": "data", "path": "x.jsonl"}}},
        {"name": "two", "source": {"volume": {"claimName": "more", "paths": ["y.jsonl"]}}},
        {"name": "three", "source": {"job": {"name": "three"}}},
    ]
    spec = {
        "maxSteps": 1,
        "algorithm": {"sft": {}},
        "policy": {"model": {"path": "/image/model"}},
        "data": {"demonstrations": {"mixture": mixture}},
    }
    job = AlignmentJob.model_validate({"metadata": {"name": "mixed"}, "spec": spec})
    assert dependency_names(job) == {"three"}
    assert volume_claims(job, []) == {"data": False, "more": False}

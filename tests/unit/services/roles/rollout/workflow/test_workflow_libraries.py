"""Libraries that a workflow needs in the environment of a rollout worker."""

import pytest
import transformers

from kubealign.spec.workflows.workflow import WorkflowSpec
from kubealign_services.roles.rollout.workflow import factory
from kubealign_services.roles.rollout.workflow.factory import check_workflow_libraries
from kubealign_services.runtime.process.failures import PermanentFailure

WORKFLOW = WorkflowSpec.model_construct()


def test_workflows_need_transformers_5(monkeypatch: pytest.MonkeyPatch) -> None:
    check_workflow_libraries(WORKFLOW)
    monkeypatch.setattr(factory, "TRANSFORMERS_MAJOR", 4)
    check_workflow_libraries(None)
    message = f"workflow needs transformers 5; .* has {transformers.__version__}: set rollout"
    with pytest.raises(PermanentFailure, match=message):
        check_workflow_libraries(WORKFLOW)

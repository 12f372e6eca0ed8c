"""Pod templates and their strategic merge: later templates override earlier ones."""

from collections.abc import Iterator, Mapping
from typing import Any

from kubealign.process_settings import Role
from kubealign.roles import Process
from kubealign.spec.job import AlignmentJobSpec
from kubealign.spec.pods.template import PodTemplate
from kubealign_operator.kube_views.lenient_json import get_path, mapping
from kubealign_operator.manifests.context import RenderContext


def pod_templates(context: RenderContext, process: Process) -> Iterator[Mapping[str, Any]]:
    """Yield the pod templates of a process in merge order: the platform's, the job's, the role's."""
    yield mapping(context.platform.pod_template)
    for template in (context.job.spec.pod_template, _role_template(context.job.spec, process)):
        if template is not None:
            document = template.model_dump(mode="json", by_alias=True, exclude_none=True)
            yield _without_containers(document) if process.role is Role.NATS else document


def _role_template(spec: AlignmentJobSpec, process: Process) -> PodTemplate | None:
    if process.reward is not None:
        return next((reward.pod_template for reward in spec.rewards if reward.name == process.reward), None)
    section = {
        "trainer": spec.trainer,
        "critic": spec.critic,
        "reference": spec.reference,
        "teacher": spec.teacher,
        "rollout": spec.rollout,
    }.get(process.group)
    return None if section is None else section.pod_template


def _without_containers(template: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the containers: the bus is scheduled like the other pods, but does not run their container."""
    spec = {name: value for name, value in mapping(get_path(template, "spec")).items() if name != "containers"}
    return {**template, "spec": spec}

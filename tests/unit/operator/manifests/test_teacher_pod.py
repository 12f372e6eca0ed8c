"""The teacher's pod: its template and its model's volume."""

from typing import Any

from kubealign.roles import roles
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.pod import build_pod
from kubealign_operator.planner.validation import parse_job
from support.rendering.jobs import PLATFORM, UID, sft


def test_the_teacher_has_its_own_pod() -> None:
    template = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 2}}}]}}
    job = parse_job(
        sft(
            algorithm={"distillation": {}},
            teacher={"model": {"volume": {"claimName": "large", "path": "70b"}}, "podTemplate": template},
        )
    )
    scene = RenderContext(job.name, "team", UID, job, PLATFORM)
    processes = roles(job)
    assert [process.name for process in processes] == ["prepare", "trainer-0", "teacher-0", "driver"]
    rendered: dict[str, Any] = {each.name: build_pod(scene, each, processes, 0) for each in processes}
    main = rendered["teacher-0"]["spec"]["containers"][0]
    assert "kubealign_services.roles.teacher.main" in str(main)
    assert main["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert "nvidia.com/gpu" not in str(rendered["trainer-0"])
    for name in ("prepare", "teacher-0"):
        claims = [
            volume["persistentVolumeClaim"]["claimName"]
            for volume in rendered[name]["spec"]["volumes"]
            if "persistentVolumeClaim" in volume
        ]
        assert "large" in claims, name

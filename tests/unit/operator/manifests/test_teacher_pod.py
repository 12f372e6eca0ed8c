"""The teacher's pod: its template and its model's volume; several teachers have one each."""

import json
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
    rendered: dict[str, Any] = {each.name: build_pod(scene, each, 0) for each in processes}
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


def test_each_of_several_teachers_has_a_pod_of_its_own() -> None:
    def teacher(name: str, gpus: int) -> dict[str, Any]:
        container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
        model = {"volume": {"claimName": f"claim-{name}", "path": "7b"}}
        return {"name": name, "model": model, "podTemplate": {"spec": {"containers": [container]}}}

    def source(name: str) -> dict[str, Any]:
        return {"name": f"of-{name}", "source": {"path": f"/{name}.jsonl"}, "teacher": name}

    job = parse_job(
        sft(
            algorithm={"onPolicyDistillation": {}},
            data={"prompts": {"mixture": [source("math"), source("verse")]}},
            teachers=[teacher("math", 2), teacher("verse", 4)],
        )
    )
    scene = RenderContext(job.name, "team", UID, job, PLATFORM)
    processes = roles(job)
    rendered: dict[str, Any] = {each.name: build_pod(scene, each, 0) for each in processes}
    for name, gpus in (("math", "2"), ("verse", "4")):
        pod = rendered[f"teacher-{name}-0"]
        main = pod["spec"]["containers"][0]
        assert main["resources"]["limits"] == {"nvidia.com/gpu": gpus}
        settings = next(entry["value"] for entry in main["env"] if '"teacher"' in entry.get("value", ""))
        assert json.loads(settings)["teacher"] == name
        assert f"claim-{name}" in str(pod["spec"]["volumes"])

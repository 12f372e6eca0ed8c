"""Contents of the pod manifests."""

import json
from dataclasses import replace
from typing import Any

import pytest

from kubealign.pod_contract import PodSettings
from kubealign.roles import roles
from kubealign_operator import names
from kubealign_operator.manifests.context import Platform, RenderContext
from kubealign_operator.manifests.pod import build_pod
from kubealign_operator.manifests.pod_templates import strategic_merge
from kubealign_operator.planner.validation import InvalidJob, parse_job
from support.rendering.jobs import PLATFORM, QUEUE, UID, ppo, sft, two_ranks

Json = dict[str, Any]


def _pods(job: Json, platform: Platform = PLATFORM) -> dict[str, Json]:
    parsed = parse_job(job)
    scene = RenderContext(parsed.name, "team", UID, parsed, platform)
    processes = (names.bus(), *roles(parsed))
    return {process.name: build_pod(scene, process, 0) for process in processes}


def _main(manifest: Json) -> Json:
    container: Json = manifest["spec"]["containers"][0]
    return container


def _settings(manifest: Json) -> PodSettings:
    variable = next(item["value"] for item in _main(manifest)["env"] if item["name"] == "KUBEALIGN_SETTINGS")
    return PodSettings.model_validate_json(variable)


@pytest.mark.parametrize("job", [sft(), two_ranks(), ppo()])
def test_every_pod_is_restricted(job: Json) -> None:
    for manifest in _pods(job).values():
        spec = manifest["spec"]
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True and security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert "hostNetwork" not in spec and not any("hostPath" in volume for volume in spec["volumes"])
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }


@pytest.mark.parametrize(
    ("bus_image", "expected"), [("", ("roles:1", "/opt/python")), ("bus:1", ("bus:1", "python"))]
)
def test_the_bus_may_have_an_image_of_its_own(bus_image: str, expected: tuple[str, str]) -> None:
    platform = replace(PLATFORM, image="roles:1", python="/opt/python", bus_image=bus_image)
    for name, manifest in _pods(ppo(), platform).items():
        container = _main(manifest)
        probe = container.get("livenessProbe", {}).get("exec")
        image, python = expected if name == names.NATS else ("roles:1", "/opt/python")
        assert (container["image"], container["command"][0]) == (image, python)
        assert (probe is not None) == (name == names.NATS)
        assert probe is None or probe["command"][0] == python


def test_the_cluster_may_choose_users_and_groups() -> None:
    platform = replace(PLATFORM, run_as_user=None, fs_group=None)
    for manifest in _pods(ppo(), platform).values():
        security = manifest["spec"]["securityContext"]
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(security)
        assert security["runAsNonRoot"] is True


@pytest.mark.parametrize("job", [sft(), ppo()])
def test_every_mount_has_its_volume_and_every_volume_its_mount(job: Json) -> None:
    for manifest in _pods(job).values():
        volumes = [volume["name"] for volume in manifest["spec"]["volumes"]]
        assert len(volumes) == len(set(volumes))
        assert sorted(volumes) == sorted(mount["name"] for mount in _main(manifest)["volumeMounts"])


def test_a_process_addresses_its_peers_by_host_name() -> None:
    created = _pods(ppo())
    driver = _settings(created["driver"])
    assert driver.peers == {
        "trainer": "trainer-0.ppo-peers.team.svc:7070",
        "critic": "critic-0.ppo-peers.team.svc:7070",
    }
    assert driver.nats_host == "nats.ppo-peers.team.svc"
    rank = _settings(created["trainer-1"])
    assert (rank.rank, rank.world_size, rank.serves) == (1, 2, True)
    assert rank.rendezvous == "trainer-0.ppo-peers.team.svc:29500"
    assert _settings(created["rollout-1"]).rendezvous is None
    for name, manifest in created.items():
        assert f"{manifest['spec']['hostname']}.{manifest['spec']['subdomain']}.team.svc" == names.host(
            "ppo", "team", name
        )


def test_only_the_checkpoint_volume_is_writable() -> None:
    mounts = _main(_pods(sft())["trainer-0"])["volumeMounts"]
    manifest = {mount["mountPath"]: mount.get("readOnly", False) for mount in mounts}
    assert manifest["/volumes/runs"] is False
    assert manifest["/volumes/data"] is True and manifest["/volumes/models"] is True


def test_a_config_map_function_is_mounted_by_its_reward_only() -> None:
    created = _pods(ppo())
    with_function = [
        name
        for name, manifest in created.items()
        if any(
            mount["mountPath"] == "/etc/kubealign/functions/rewards"
            for mount in _main(manifest)["volumeMounts"]
        )
    ]
    assert with_function == ["reward-format-0"]


def test_a_tools_config_map_is_mounted_by_the_workers_and_the_preparation() -> None:
    function = {"configMap": {"name": "tools", "key": "tools.py", "function": "add"}}
    for workflow, expected in (
        ({"toolCalls": {"tools": [{"function": function}]}}, {"prepare", "rollout-0"}),
        ({"tools": {"tools": [{"name": "add", "function": function}]}}, {"rollout-0"}),
    ):
        job = ppo()
        job["spec"]["data"]["prompts"]["format"] = {"chat": {}}
        job["spec"]["rollout"] = {"workflow": workflow}
        job["spec"].pop("validation", None)
        mounting = {
            name
            for name, manifest in _pods(job).items()
            for mount in _main(manifest)["volumeMounts"]
            if mount["mountPath"] == "/etc/kubealign/functions/tools"
        }
        assert mounting == expected


def test_the_certificate_is_the_roles_own() -> None:
    for name, role in (("trainer-1", "trainer"), ("prepare", "driver"), ("nats", "nats")):
        volume = next(
            manifest
            for manifest in _pods(ppo())[name]["spec"]["volumes"]
            if manifest["name"] == "kubealign-credentials"
        )
        keys = {item["key"] for item in volume["projected"]["sources"][0]["secret"]["items"]}
        assert f"{role}-key.pem" in keys
        assert not any(key.endswith("-key.pem") for key in keys - {f"{role}-key.pem"})


def test_the_bus_is_scheduled_like_the_job_without_its_container_settings() -> None:
    job = ppo()
    job["spec"]["podTemplate"]["spec"]["containers"] = [
        {"name": "main", "image": "mine:1", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    ]
    created = _pods(job)
    assert created["nats"]["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert _main(created["nats"])["image"] == PLATFORM.image
    assert "limits" not in _main(created["nats"])["resources"]
    assert _main(created["reward-helpful-0"])["image"] == "mine:1"


def test_templates_merge_in_the_order_platform_job_role() -> None:
    job = sft(
        podTemplate={
            "spec": {
                "nodeSelector": {"a": "job", "b": "job"},
                "containers": [{"name": "main", "image": "job:1"}],
            }
        },
        trainer={"podTemplate": {"spec": {"nodeSelector": {"b": "role"}}}},
    )
    platform = replace(
        PLATFORM,
        pod_template={
            "metadata": {"annotations": {"admin": "yes"}},
            "spec": {
                "nodeSelector": {"a": "platform", "c": "platform"},
                "dnsPolicy": "Default",
                "volumes": [{"name": "code", "hostPath": {"path": "/srv"}}],
                "containers": [
                    {
                        "name": "main",
                        "image": "platform:1",
                        "volumeMounts": [{"name": "code", "mountPath": "/srv"}],
                    }
                ],
            },
        },
    )
    trainer = _pods(job, platform)["trainer-0"]
    assert trainer["spec"]["nodeSelector"] == {"a": "job", "b": "role", "c": "platform"}
    assert _main(trainer)["image"] == "job:1"
    assert trainer["spec"]["dnsPolicy"] == "Default"
    assert trainer["metadata"]["annotations"] == {"admin": "yes"}
    assert {"name": "code", "mountPath": "/srv"} in _main(trainer)["volumeMounts"]


def test_a_limit_replaces_the_default_request() -> None:
    job = sft(
        trainer={
            "podTemplate": {
                "spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "512Mi"}}}]}
            }
        }
    )
    main = _main(_pods(job)["trainer-0"])
    assert main["resources"] == {"requests": {"cpu": "500m"}, "limits": {"memory": "512Mi"}}
    shared = next(
        volume
        for volume in _pods(job)["trainer-0"]["spec"]["volumes"]
        if volume["name"] == "kubealign-shared-memory"
    )
    assert shared["emptyDir"] == {"medium": "Memory", "sizeLimit": "512Mi"}


def test_platform_resources_replace_the_built_in_ones() -> None:
    platform = replace(PLATFORM, default_resources={"trainer": {"requests": {"cpu": "50m"}}})
    created = _pods(sft(), platform)
    assert _main(created["trainer-0"])["resources"] == {"requests": {"cpu": "50m"}}
    assert "requests" in _main(created["driver"])["resources"]


def test_preparation_has_resources_of_its_own() -> None:
    """Without them it has the driver's, whose role it has."""
    driver, own = {"requests": {"cpu": "1"}}, {"requests": {"cpu": "3"}}
    created = _pods(sft(), replace(PLATFORM, default_resources={"driver": driver}))
    assert _main(created["prepare"])["resources"] == _main(created["driver"])["resources"] == driver
    created = _pods(sft(), replace(PLATFORM, default_resources={"driver": driver, "prepare": own}))
    assert _main(created["prepare"])["resources"] == own
    assert _main(created["driver"])["resources"] == driver


def test_a_template_cannot_change_selector_labels() -> None:
    job = sft()
    job["metadata"]["labels"] = {
        "kubealign.dev/job-uid": "another",
        "app.kubernetes.io/name": "x",
        "team": "a",
    }
    labels = _pods(job)["trainer-0"]["metadata"]["labels"]
    assert labels["kubealign.dev/job-uid"] == UID
    assert (labels["app.kubernetes.io/name"], labels["team"]) == ("kubealign", "a")


def test_labels_for_kueue_stay_on_the_job() -> None:
    job = ppo()
    job["metadata"]["labels"] |= QUEUE
    for manifest in _pods(job).values():
        assert "kueue.x-k8s.io" not in json.dumps(manifest["metadata"])
        assert manifest["metadata"]["labels"]["cost-centre"] == "42"


def test_the_pods_grace_period_exceeds_the_processs_own() -> None:
    job = sft(lifecycle={"gracePeriodSeconds": 45.5})
    assert _pods(job)["driver"]["spec"]["terminationGracePeriodSeconds"] == 51


_ENV = [{"name": "A", "value": "1"}]


@pytest.mark.parametrize(
    ("base", "patch", "result"),
    [
        ({"a": 1}, {"a": None}, {}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"env": _ENV}, {"env": [{"name": "A", "value": "2"}]}, {"env": [{"name": "A", "value": "2"}]}),
        ({"env": _ENV}, {"env": [{"name": "B"}]}, {"env": [*_ENV, {"name": "B"}]}),
        (
            {"volumeMounts": [{"name": "a", "mountPath": "/x"}]},
            {"volumeMounts": [{"name": "b", "mountPath": "/x"}]},
            {"volumeMounts": [{"name": "b", "mountPath": "/x"}]},
        ),
        (
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "a"}, {"key": "b"}]},
            {"tolerations": [{"key": "a"}, {"key": "b"}]},
        ),
        ({"volumes": "x"}, {"volumes": [{"name": "a"}]}, {"volumes": [{"name": "a"}]}),
        ({"env": ["odd"]}, {"env": ["odd", {"value": "x"}]}, {"env": ["odd", "odd", {"value": "x"}]}),
    ],
)
def test_strategic_merge(base: Json, patch: Json, result: Json) -> None:
    before = json.dumps([base, patch])
    assert strategic_merge(base, patch) == result
    assert json.dumps([base, patch]) == before


def _resources(manifest: Json) -> Json:
    value: Json = _main(manifest)["resources"]
    return value


def test_devices_of_the_jobs_template_do_not_reach_the_pods_without_a_model() -> None:
    limits = {"nvidia.com/gpu": "1", "cpu": "2", "memory": "4Gi"}
    template = {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}
    pods = _pods(sft(podTemplate=template))
    assert _resources(pods["trainer-0"])["limits"] == limits
    for name in ("prepare", "driver"):
        assert _resources(pods[name])["limits"] == {"cpu": "2", "memory": "4Gi"}
    assert "limits" not in _resources(pods["nats"])


def test_pods_without_a_model_have_templates_of_their_own() -> None:
    def template(memory: str, pool: str) -> Json:
        container = {"name": "main", "resources": {"requests": {"cpu": "1", "memory": memory}}}
        return {"spec": {"nodeSelector": {"pool": pool}, "containers": [container]}}

    job = sft(
        podTemplate={"spec": {"nodeSelector": {"pool": "any", "disk": "ssd"}}},
        controlPods={
            "prepare": template("64Gi", "large"),
            "driver": template("2Gi", "small"),
            "bus": template("8Gi", "bus"),
        },
    )
    pods = _pods(job)
    for name, memory, pool in (
        ("prepare", "64Gi", "large"),
        ("driver", "2Gi", "small"),
        ("nats", "8Gi", "bus"),
    ):
        assert _resources(pods[name])["requests"] == {"cpu": "1", "memory": memory}
        assert pods[name]["spec"]["nodeSelector"] == {"pool": pool, "disk": "ssd"}
    assert pods["trainer-0"]["spec"]["nodeSelector"] == {"pool": "any", "disk": "ssd"}


def test_a_key_is_in_no_other_pod_than_the_one_that_names_it() -> None:
    def key(secret: str) -> Json:
        reference = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}}
        return {"spec": {"containers": [{"name": "main", "env": [reference]}]}}

    pods = _pods(sft(controlPods={"driver": key("tracker"), "prepare": key("hub")}))
    holders = {
        secret: {name for name, pod in pods.items() if f'"name": "{secret}"' in json.dumps(pod)}
        for secret in ("tracker", "hub")
    }
    assert holders == {"tracker": {"driver"}, "hub": {"prepare"}}


def test_processes_send_traces_where_the_platform_has_a_collector() -> None:
    def endpoints(pod: Json) -> list[str]:
        return [each["value"] for each in _main(pod)["env"] if each["name"] == "OTEL_EXPORTER_OTLP_ENDPOINT"]

    endpoint = "http://collector.observability.svc:4318"
    traced = _pods(sft(), platform=replace(PLATFORM, otlp_endpoint=endpoint))
    assert {name: endpoints(pod) for name, pod in traced.items()} == {
        "prepare": [endpoint],
        "trainer-0": [endpoint],
        "driver": [endpoint],
        "nats": [],
    }
    assert not any(endpoints(pod) for pod in _pods(sft()).values())


def test_the_bus_runs_its_own_program() -> None:
    container = {"name": "main", "image": "other"}
    with pytest.raises(InvalidJob, match=r"spec\.controlPods\.bus\.spec\.containers\[0\]\.image"):
        parse_job(sft(controlPods={"bus": {"spec": {"containers": [container]}}}))


def test_pods_may_have_a_service_account_whose_token_they_do_not_get() -> None:
    pods = _pods(sft(podTemplate={"spec": {"serviceAccountName": "model-reader"}}))
    for manifest in pods.values():
        assert manifest["spec"]["serviceAccountName"] == "model-reader"
        assert manifest["spec"]["automountServiceAccountToken"] is False


def test_a_process_ignores_settings_that_its_image_does_not_know() -> None:
    settings = _settings(_pods(sft())["trainer-0"])
    newer = {**json.loads(settings.model_dump_json(exclude_defaults=True)), "of_a_newer_operator": {"a": 1}}
    assert PodSettings.model_validate_json(json.dumps(newer)) == settings

"""Rejection of cluster-only features before a run starts; pod settings are ignored."""

from pathlib import Path

import pytest

from kubealign.local.errors import RunRefused
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.runner.admission import admit
from kubealign.roles import roles
from kubealign.spec.job import AlignmentJob
from support.hidden_package import hide_package

RLOO = """
apiVersion: kubealign.dev/v1alpha1
kind: AlignmentJob
metadata: {name: sums}
spec:
  maxSteps: 90
  algorithm: {rloo: {}}
  policy: {model: {path: base}}
  data: {prompts: {source: {path: prompts.jsonl}}}
  rewards: [{name: exact, function: {module: "a:b"}}]
"""
TEMPLATE = """
  podTemplate:
    metadata: {labels: {kueue.x-k8s.io/queue-name: align}}
    spec:
      tolerations: [{key: gpu, operator: Exists}]
      containers:
      - {name: main, resources: {limits: {nvidia.com/gpu: 8, memory: 16Gi}}, env: [{name: A, value: ""}]}
"""
CONFIG_MAP = "configMap: {name: scores, key: exact.py, function: score}"


def test_a_suspended_job_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(
        RunRefused, match=r"sums: spec\.suspend: is true, so it is not started: set it to false"
    ):
        admit(AlignmentJob.from_yaml(RLOO + "  suspend: true\n"), RunDirectory(tmp_path / "sums"))
    assert not (tmp_path / "sums").exists()


def test_a_job_of_multikueue_is_refused_and_one_of_the_operator_is_not(tmp_path: Path) -> None:
    text = RLOO + "  managedBy: kueue.x-k8s.io/multikueue\n"
    with pytest.raises(RunRefused, match=r"spec\.managedBy: kueue\.x-k8s\.io/multikueue is for clusters"):
        admit(AlignmentJob.from_yaml(text), RunDirectory(tmp_path / "sums"))
    text = RLOO + "  managedBy: kubealign.dev/operator\n"
    assert admit(AlignmentJob.from_yaml(text), RunDirectory(tmp_path / "sums")).previous_status is None


def test_workers_of_one_machine_need_servers_of_their_own(tmp_path: Path) -> None:
    """In a cluster the loopback host is that of each worker's pod."""
    rollout = "  rollout: {{replicas: {}, engine: {{openai: {{url: 'http://127.0.0.1:800{}'}}}}}}\n"
    shared = AlignmentJob.from_yaml(RLOO + rollout.format(2, "0"))
    with pytest.raises(RunRefused, match=r"openai\.url: is http://127\.0\.0\.1:8000, .* all 2 workers"):
        admit(shared, RunDirectory(tmp_path / "sums"))
    for replicas, port in ((1, "0"), (2, "{worker}")):
        admit(AlignmentJob.from_yaml(RLOO + rollout.format(replicas, port)), RunDirectory(tmp_path / "sums"))


def test_external_agents_need_their_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = "  rollout: {workflow: {agent: {external: {tokenVariable: AGENTS_TOKEN}}}}\n"
    job = AlignmentJob.from_yaml(RLOO + rollout)
    monkeypatch.delenv("AGENTS_TOKEN", raising=False)
    with pytest.raises(RunRefused, match=r"external\.tokenVariable: .* AGENTS_TOKEN is not set"):
        admit(job, RunDirectory(tmp_path / "sums"))
    monkeypatch.setenv("AGENTS_TOKEN", "secret")
    admit(job, RunDirectory(tmp_path / "sums"))


def test_a_function_of_a_config_map_is_refused_with_the_remedy(tmp_path: Path) -> None:
    scores = "  validation: {data: {prompts: {source: {path: x}}}, sampling: {scores: [%s]}}"
    text = RLOO.replace('module: "a:b"', CONFIG_MAP) + scores % f"{{name: a, function: {{{CONFIG_MAP}}}}}"
    with pytest.raises(RunRefused) as caught:
        admit(AlignmentJob.from_yaml(text), RunDirectory(tmp_path / "sums"))
    first, second = str(caught.value).splitlines()
    assert first.startswith("sums: spec.rewards[0].function.configMap: ConfigMaps are for clusters")
    assert second.startswith("sums: spec.validation.sampling.scores[0].function.configMap")
    assert "function: {file: {path: exact.py, name: score}}" in first


def test_pod_template_is_ignored(tmp_path: Path) -> None:
    plain, patched = AlignmentJob.from_yaml(RLOO), AlignmentJob.from_yaml(RLOO + TEMPLATE)
    assert admit(patched, RunDirectory(tmp_path / "sums")).previous_status is None
    assert roles(patched) == roles(plain)
    containers = patched.spec.pod_template and patched.spec.pod_template.spec
    assert containers is not None and containers.containers is not None
    resources = containers.containers[0].resources
    assert resources is not None and resources.limits == {"nvidia.com/gpu": "8", "memory": "16Gi"}


@pytest.mark.parametrize(
    ("field", "path", "remedy"),
    [
        ("optimizer: {adamW: {states: Blockwise8Bit}}", r"optimizer\.adamW\.states", "write Float32"),
        ("lora: {quantization: {}}", r"lora\.quantization\.nf4", "remove it"),
    ],
)
@pytest.mark.parametrize("section", ["trainer", "critic"])
def test_a_package_that_a_field_needs_must_be_installed(
    section: str, field: str, path: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = RLOO if section == "trainer" else RLOO.replace("rloo: {}", "ppo: {}")
    model = ", model: {path: base}" if section == "critic" else ""
    job = AlignmentJob.from_yaml(f"{text}  {section}: {{{field}{model}}}\n")
    admit(job, RunDirectory(tmp_path / "sums"))
    hide_package(monkeypatch, "bitsandbytes")
    message = rf"sums: spec\.{section}\.{path}: .*'kubealign\[bitsandbytes\]', or {remedy}"
    with pytest.raises(RunRefused, match=message):
        admit(job, RunDirectory(tmp_path / "sums"))


def test_an_environment_of_verifiers_needs_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = "  rollout: {workflow: {agent: {verifiers: {taskset: gsm8k}}}}\n"
    hide_package(monkeypatch, "verifiers")
    message = r"sums: spec\.rollout\.workflow\.agent\.verifiers: .*'kubealign\[verifiers\]'"
    with pytest.raises(RunRefused, match=message):
        admit(AlignmentJob.from_yaml(RLOO + agent), RunDirectory(tmp_path / "sums"))

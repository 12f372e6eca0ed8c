"""The script of `support.client_script` on a real cluster, and client features of clusters only."""

import json
from pathlib import Path

import pytest

from cluster.support.paced_jobs import paced_job, prepare, set_pace
from cluster.support.tenant import CLAIM, Tenant
from kubealign import AlignmentClient, Job
from kubealign.client.records import ProcessState
from kubealign.errors import NotPossible
from support.client_script import walk

pytestmark = pytest.mark.timeout(900)

_STEPS = 20


def test_the_script_of_this_machine_runs_on_a_cluster(
    tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A pod reads the result: the namespace must admit that pod like the pods of the job.
    tenant.kubectl("label", "namespace", tenant.namespace, "pod-security.kubernetes.io/enforce=restricted")
    prepare(tenant, _STEPS)
    set_pace(tenant, 0.3)
    kubeconfig = tenant.control_plane.kubeconfig
    with AlignmentClient.cluster(kubeconfig, namespace=tenant.namespace) as client:

        def running(job: Job) -> None:
            states = {process.name: process.state for process in job.processes()}
            assert states["prepare"] is ProcessState.FINISHED
            with pytest.raises(NotPossible, match="no result yet"):
                job.result(tmp_path / "early")

        walked = walk(client, paced_job("walked", _STEPS), tmp_path / "result", timeout=400, running=running)

        assert walked.phases[-2:] == ["Running", "Succeeded"]
        assert walked.lines == [line.text for line in client.logs("walked", process="driver")]
        assert all(json.loads(line)["job"] for line in walked.lines)
        [last] = client.logs("walked", process="driver", tail=1)
        assert last.text == walked.lines[-1]

        result_folder = tenant.run_folder("walked") / "result"
        sent = {path.name: path.read_bytes() for path in result_folder.iterdir()}
        assert {path.name: path.read_bytes() for path in walked.result.iterdir()} == sent
        with pytest.raises(NotPossible, match="new or empty"):
            client.result("walked", walked.result)
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
        tenant.until(lambda: not [name for name in tenant.pods() if "-result-" in name], "its pod to go")

        # With the volume mounted on this machine, nothing is downloaded.
        (tmp_path / "claims").mkdir()
        (tmp_path / "claims" / CLAIM).symlink_to(tenant.folder)
        monkeypatch.setenv("KUBEALIGN_CLAIMS_DIR", str(tmp_path / "claims"))
        loaded = client.load_result("walked")
        assert loaded.path.resolve() == result_folder.resolve()
        assert loaded.model.num_parameters() > 0 and loaded.tokenizer("a")

        # Metrics and samples come from the platform's dashboard, through the API server.
        assert [row["step"] for row in client.metrics("walked")] == list(range(1, _STEPS + 1))
        [sample] = client.samples("walked", count=1)
        assert sample.prompt and sample.weight_version > 0

        messages = [event.message for event in client.events("walked")]
        assert any(message.startswith("rollout-1: ") for message in messages)
        client.delete("walked")

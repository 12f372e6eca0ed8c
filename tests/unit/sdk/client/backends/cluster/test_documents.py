"""Checks of a job before a request."""

import pytest

from kubealign.client.backends.cluster.documents import check_runs_here
from kubealign.client.errors import NotPossible
from kubealign.client.records import JobRecord
from support.rendering.jobs import sft


def test_the_pods_of_a_job_of_multikueue_are_in_another_cluster() -> None:
    with pytest.raises(NotPossible, match=r"team/sft runs in a worker cluster .*: read its logs there"):
        check_runs_here(JobRecord(sft(managedBy="kueue.x-k8s.io/multikueue")), "read its logs there")
    check_runs_here(JobRecord(sft(managedBy="kubealign.dev/operator")), "read its logs there")
    check_runs_here(JobRecord(sft()), "read its logs there")

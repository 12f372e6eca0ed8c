"""The report of a job, for a bug report."""

from kubealign.diagnostics.job_report import collect_report
from support.bad_specs import whole_job
from support.memory_backend import MemoryBackend


async def test_the_logs_of_failed_attempts_are_in_the_report() -> None:
    site = MemoryBackend(kind="cluster")
    ref = (await site.create(whole_job("sft"))).ref
    site.log(ref, "trainer-0", "now")
    files = await collect_report(site, ref, tail=10)
    assert {name for name in files if name.startswith("logs/")} == {"logs/trainer-0.log"}
    assert "errors.txt" not in files
    site.log_previous(ref, "trainer-0", "RuntimeError: x")
    files = await collect_report(site, ref, tail=10)
    assert files["logs/trainer-0.previous.log"] == b"RuntimeError: x\n"
    assert files["logs/trainer-0.log"] == b"now\n"

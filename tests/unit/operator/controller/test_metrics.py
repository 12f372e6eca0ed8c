"""Cost of the operator's metrics page."""

from kubealign_operator.controller.metrics import OperatorMetrics


def test_jobs_are_counted_at_most_once_a_second() -> None:
    now, jobs, counts = 0.0, [("team", "Running")], 0

    def phases() -> list[tuple[str, str]]:
        nonlocal counts
        counts += 1
        return jobs

    metrics = OperatorMetrics(clock=lambda: now)
    metrics.observe(phases=phases, depth=lambda: 0)
    for _ in range(100):
        assert b'kubealign_jobs{namespace="team",phase="Running"} 1.0' in metrics.render()
    assert counts == 1
    jobs.append(("team", "Running"))
    metrics.set_redis_up(True)
    now = 0.9
    page = metrics.render()
    assert b'kubealign_jobs{namespace="team",phase="Running"} 1.0' in page
    assert b"kubealign_operator_redis_up 1.0" in page, "only the jobs are cached"
    now = 1.0
    assert b'kubealign_jobs{namespace="team",phase="Running"} 2.0' in metrics.render()
    assert counts == 2

"""The job's condition Admitted."""

from kubealign_operator.planner.admission.job_admission import JobAdmission
from kubealign_operator.planner.plan import ADMITTED, DesiredCondition, desired_condition


def admission_conditions(admission: JobAdmission | None) -> tuple[DesiredCondition, ...]:
    """Return the condition that shows Kueue's answer; none for a job without a queue."""
    if admission is None:
        return ()
    return (desired_condition(ADMITTED, not admission.obstacle, admission.reason, admission.obstacle),)

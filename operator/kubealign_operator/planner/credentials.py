"""Generations of a job's credentials: which one is current, and when the next one replaces it.

A generation is one immutable Secret. The next one is recorded in the status before its Secret is created, and
its content is new: certificate authority, certificates and passwords.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kubealign.spec.status import CredentialsStatus, JobPhase
from kubealign_operator import names
from kubealign_operator.kube_views import pod_state
from kubealign_operator.kube_views.observed_job import PodView
from kubealign_operator.planner.plan import KubeEventType, PlannedEvent
from kubealign_operator.planner.snapshot import JobSnapshot

RENEWED = "CredentialsRenewed"
#: Margin before an expiry whose lifetime is unknown.
_MARGIN = timedelta(days=1)
_LATEST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class CredentialsDecision:
    """The current credentials of a job.

    Args:
        renewal_reason: Why they replace an earlier generation from now on; empty: they are not new.
    """

    status: CredentialsStatus
    renewal_reason: str = ""

    @property
    def events(self) -> tuple[PlannedEvent, ...]:
        """The event that reports a renewal."""
        if not self.renewal_reason:
            return ()
        message = (
            f"new certificates and passwords in the Secret {self.status.secret_name}: {self.renewal_reason}"
        )
        return (PlannedEvent(KubeEventType.NORMAL, RENEWED, message),)


def current_credentials(snapshot: JobSnapshot, document_change: str) -> CredentialsDecision:
    """Decide on the credentials of an active job, which are renewed when they are due.

    Args:
        document_change: Why the job gets a new document while pods mount an earlier one, so that all of them
            must be replaced; empty: it does not.
    """
    before = _previous(snapshot)
    if before is None:
        return CredentialsDecision(_issue(snapshot, 1))
    reason = _renewal_reason(snapshot, before, document_change)
    return renew(snapshot, before, reason) if reason else CredentialsDecision(before)


def renewal_without_pods(snapshot: JobSnapshot, reason: str) -> CredentialsDecision | None:
    """Renew the credentials of a job without pods; None: it has none yet."""
    before = _previous(snapshot)
    return None if before is None else renew(snapshot, before, reason)


def requested_renewal(snapshot: JobSnapshot) -> str:
    """Return the reason of a requested renewal that was not acted on yet; empty: none is requested."""
    value, credentials = snapshot.renewal_annotation, snapshot.previous_status.credentials
    if not value or (credentials is not None and credentials.renewal_request == value):
        return ""
    return "requested by the annotation kubealign.dev/renew-credentials"


def renew(snapshot: JobSnapshot, before: CredentialsStatus, reason: str) -> CredentialsDecision:
    """Decide that the next generation replaces the credentials, also those of every existing pod."""
    latest = max(before.generation, *map(pod_state.credentials_generation_of, snapshot.pods), 1)
    return CredentialsDecision(_issue(snapshot, latest + 1), reason)


def outdated_pods(snapshot: JobSnapshot, credentials: CredentialsStatus) -> list[PodView]:
    """Return the pods that mount an earlier generation: the others do not trust their certificates."""
    return [
        pod
        for pod in snapshot.remaining_pods
        if pod_state.credentials_generation_of(pod) < credentials.generation
    ]


def has_secret(snapshot: JobSnapshot, generation: int) -> bool:
    return ("Secret", names.credentials(snapshot.name, generation)) in snapshot.observed.objects


def renewal_time(credentials: CredentialsStatus) -> datetime | None:
    """Return the time at which the credentials are renewed; None: never, as their expiry is unknown.

    A third of the lifetime is left then, so that no pod starts with certificates that are about to expire.
    """
    issued, expires = credentials.issued_at, credentials.expires_at
    if expires is None:
        return None
    try:
        return expires - _MARGIN if issued is None else issued + (expires - issued) * 2 / 3
    except OverflowError:
        return expires


def _previous(snapshot: JobSnapshot) -> CredentialsStatus | None:
    """Return the credentials before this reconcile; None: the job has none.

    A job of an earlier release has the first generation, without a record in its status.
    """
    recorded = snapshot.previous_status.credentials
    if recorded is not None or not (snapshot.pods or has_secret(snapshot, 1)):
        return recorded
    return CredentialsStatus(secret_name=names.credentials(snapshot.name), generation=1)


def _renewal_reason(snapshot: JobSnapshot, before: CredentialsStatus, document_change: str) -> str:
    """Return why the credentials are replaced now; empty: they are not."""
    if snapshot.previous_status.phase in (JobPhase.SUSPENDING, JobPhase.SUSPENDED):
        return "the job is resumed"
    if document_change and snapshot.remaining_pods:
        return document_change
    requested = requested_renewal(snapshot)
    if requested:
        return requested
    due = renewal_time(before)
    if due is not None and snapshot.now > due:
        expires = "" if before.expires_at is None else before.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"the certificates of the Secret {before.secret_name} expire at {expires}"
    generations = [pod_state.credentials_generation_of(pod) for pod in snapshot.pods]
    if any(generation > before.generation for generation in generations):
        return "the status records an earlier generation than the pods have"
    was_created = before.expires_at is None or before.generation in generations
    was_created = was_created and before.secret_name not in snapshot.observed.create_errors
    if was_created and not has_secret(snapshot, before.generation):
        return f"the Secret {before.secret_name} does not exist any more"
    return ""


def _issue(snapshot: JobSnapshot, generation: int) -> CredentialsStatus:
    issued = snapshot.timestamp
    lifetime = timedelta(days=snapshot.platform.credentials_lifetime_days)
    return CredentialsStatus(
        secret_name=names.credentials(snapshot.name, generation),
        generation=generation,
        issued_at=issued,
        expires_at=issued + min(lifetime, _LATEST - issued),
        renewal_request=snapshot.renewal_annotation or None,
    )

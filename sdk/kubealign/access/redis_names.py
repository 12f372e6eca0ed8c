"""Names of keys and users in a Redis that several clusters may share."""

#: Identity of a cluster: a DNS label, so that no name of one cluster begins like a name of another one.
CLUSTER_ID_PATTERN = r"^([a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?)?$"
_ROOT = "kubealign"


def key_prefix(cluster_id: str = "") -> str:
    """Return the prefix of all keys of a cluster.

    Args:
        cluster_id: Identity that matches CLUSTER_ID_PATTERN; empty: the cluster has the Redis for itself.
    """
    return f"{_ROOT}.{cluster_id}:" if cluster_id else f"{_ROOT}:"


def job_prefix(namespace: str, job: str, cluster_id: str = "") -> str:
    """Return the prefix of the keys of a job."""
    return f"{key_prefix(cluster_id)}{namespace}:{job}:"


def user_prefix(cluster_id: str = "") -> str:
    """Return the prefix of the names of the jobs' users."""
    return f"{_ROOT}.{cluster_id}." if cluster_id else f"{_ROOT}-"

"""Environment variables that libraries read on import."""

#: Environment of every role process: no progress bars in logs, no threads or fork handlers created on import;
#: OpenMP threads sleep while waiting, after the spins set by `library_environment`.
BASE_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GRPC_ENABLE_FORK_SUPPORT": "false",
    "GRPC_VERBOSITY": "ERROR",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

# Spins of a waiting OpenMP thread before it sleeps: up to 1 ms, and up to 0.1 ms. Waking a sleeping thread
# costs more than most of the thousands of waits in a step, so threads spin; spinning takes CPU time from
# other processes.
# docs/training-backends.md has the measurements.
_SPINS_EXCLUSIVE, _SPINS_SHARED = "20000", "2000"


def library_environment(exclusive_cores: bool) -> dict[str, str]:
    """Return the environment of a role process.

    Args:
        exclusive_cores: True if no other process needs the cores while this one computes.
    """
    return BASE_ENVIRONMENT | {"GOMP_SPINCOUNT": _SPINS_EXCLUSIVE if exclusive_cores else _SPINS_SHARED}

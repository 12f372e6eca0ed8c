"""What the libraries read from the environment when they are imported."""

#: Of every role process: no progress bars in logs, no threads or fork handlers made by an import. OpenMP's
#: threads wait for one another asleep, but for what `environment` says.
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GRPC_ENABLE_FORK_SUPPORT": "false",
    "GRPC_VERBOSITY": "ERROR",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

# How often a thread that waits looks before it sleeps: up to a millisecond, and up to a tenth of one. To wake
# one takes longer than most waits of an operation, of which a step has thousands; but what a thread looks,
# another process lacks. docs/training-backends.md has the figures.
_ALONE, _AMONG_OTHERS = "20000", "2000"


def environment(alone: bool) -> dict[str, str]:
    """alone: while one of the processes computes, no other wants its cores."""
    return ENVIRONMENT | {"GOMP_SPINCOUNT": _ALONE if alone else _AMONG_OTHERS}

"""What the libraries read from the environment when they are imported."""

#: Of every role process: no progress bars in logs, no threads or fork handlers made by an import. Threads
#: that wait for others do so asleep: several processes share the cores, and spinning made a step six times
#: longer.
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GRPC_ENABLE_FORK_SUPPORT": "false",
    "GRPC_VERBOSITY": "ERROR",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

"""Durations of the slowest test files, so that several workers start with them and end together."""

#: Path below tests -> approximate seconds on two cores. Other files are faster.
SECONDS = {
    "integration/numbers/test_gsm8k.py": 120,
    "integration/dashboard/test_conformance.py": 105,
    "integration/megatron/test_training_contract.py": 85,
    "integration/messaging/test_jetstream_restart.py": 80,
    "integration/docs/test_quickstarts.py": 76,
    "integration/docs/test_tutorial.py": 55,
    "integration/vllm/test_vllm_job.py": 70,
    "integration/vllm/test_vllm_contract.py": 60,
    "integration/numbers/test_every_step.py": 50,
    "integration/jobs/test_job_survives.py": 50,
    "integration/placement/test_rollout_with_trainer.py": 50,
    "integration/page/test_page_of_a_real_job.py": 45,
    "integration/vllm/test_openai_engine.py": 45,
    "integration/examples/test_constitutional.py": 39,
    "integration/examples/test_preference.py": 38,
    "integration/bad_input/test_bad_disk.py": 36,
    "integration/cli/test_command_line.py": 34,
}


def weight(path: str) -> int:
    """Return the seconds of a file, named as in SECONDS; 0 for one that is fast."""
    return SECONDS.get(path, 0)

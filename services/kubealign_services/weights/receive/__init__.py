"""Reception of a weight version by a rollout worker: plan, transfer, assembly, verification, recovery."""

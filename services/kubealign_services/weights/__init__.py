"""Weight sync (refit): transfers new policy weights from the trainer to the rollout engines.

The code says *refit*, NeMo-RL's word, for the protocol in this package. For each weight version, every
trainer rank writes its part to a snapshot (`send`), the driver announces the version with the checksums of
all tensors on the bus (`announce`), every rollout worker fetches the parts over one of the transports
(`transfer`, `receive`), verifies checksums and a canary (`verify`) and acknowledges, and the driver waits
for a quorum (`announce.coordinator`).
"""

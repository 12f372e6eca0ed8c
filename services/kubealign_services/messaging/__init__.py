"""Message bus of a job: the contract, an implementation over NATS JetStream, and one in memory."""

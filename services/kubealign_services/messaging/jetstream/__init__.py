"""The bus on NATS JetStream: streams, pull consumers, and the server process."""

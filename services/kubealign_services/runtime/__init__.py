"""The runtime of a role process: start and shutdown, gRPC, ranks, offload, plugins."""

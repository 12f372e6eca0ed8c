"""Weight transfer by gRPC streams, optionally relayed between receivers."""

"""gRPC between the roles: server, client, authorization and exceptions."""

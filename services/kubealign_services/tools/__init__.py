"""Tools that the policy calls in its model's own format: schemas, parsers, functions and MCP servers."""

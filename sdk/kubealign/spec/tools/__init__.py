"""Tools of a workflow: functions, MCP servers, and calls in the model's own format."""

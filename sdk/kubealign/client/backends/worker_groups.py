"""Names of elastic groups of workers. Imports nothing: the command line needs them before a command runs."""

#: Names of the roles, as in `process_settings.Role`.
ROLLOUT = "rollout"
ENVIRONMENT = "environment"

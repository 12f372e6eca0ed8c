"""Loading of job files: YAML parsing, parameters, overrides, validation, error messages."""

"""Documentation generated from the spec's models: docs/spec.md, kubealign explain, job templates."""

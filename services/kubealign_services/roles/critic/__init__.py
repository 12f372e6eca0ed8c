"""The critic: trains the value model, and optionally scores with reward models."""

"""Command line interface: `kubealign` and `kubectl align`."""

"""Run directory: layout, lock, status, events and control socket."""

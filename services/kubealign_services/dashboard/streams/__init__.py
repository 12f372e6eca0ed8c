"""Live updates: what changes is looked for once, however many look on."""

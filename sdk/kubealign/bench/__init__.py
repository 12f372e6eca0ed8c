"""How many rollout workers keep a trainer busy: arithmetic on measured figures. Imports no torch."""

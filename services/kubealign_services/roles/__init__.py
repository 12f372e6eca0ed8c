"""One package per role. Roles communicate on the wire only and never import each other."""

"""Jobs, pods and a small simulated cluster for tests of the planner."""

"""Plans what to do about a job: pure functions from the observed state to a plan."""

"""Watches jobs and pods, plans with the pure planner, and executes the plans."""

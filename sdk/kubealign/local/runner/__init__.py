"""Runners: admission, execution and scaling of jobs, in the foreground or detached."""

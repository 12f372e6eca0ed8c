"""The platform's Redis: users of jobs, and the progress that drivers report."""

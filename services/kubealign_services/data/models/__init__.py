"""Models of a job: resolution, construction and checks."""

"""Changes of a job: differences of two specs, jobs that continue a checkpoint, and forks."""

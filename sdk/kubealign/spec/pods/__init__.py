"""Pod templates of a job: fields, volumes, resource quantities."""

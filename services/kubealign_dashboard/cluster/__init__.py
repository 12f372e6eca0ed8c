"""The dashboard of a cluster: rights from the API server, and a cache of all jobs."""

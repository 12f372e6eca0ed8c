"""Sources of rows: files, hub datasets, volumes and results of other jobs."""

"""Services of a job: its roles, and the packages that the roles share."""

"""The dashboard: a REST API, live streams and a web page over the jobs of a cluster or of this machine."""

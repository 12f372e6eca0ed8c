"""kubealign: align language models on Kubernetes, or on one machine, from one `AlignmentJob`."""

__version__ = "0.1.0"

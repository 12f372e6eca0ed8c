"""Resource plans of jobs: memory by process and part, network traffic, and whether the job fits the machine.

Pure arithmetic: neither torch nor transformers is imported.
"""

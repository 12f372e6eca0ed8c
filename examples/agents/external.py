"""Runs the agent of guess.py outside the job: python external.py URL ..., with the token in AGENTS_TOKEN."""

import os
import sys

from guess import solve

from kubealign.agents.external import serve_agent

if __name__ == "__main__":
    serve_agent(sys.argv[1:], os.environ["AGENTS_TOKEN"], solve, concurrency=64)

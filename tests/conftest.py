"""For all tests: property tests are judged by what they find, not by how fast a loaded machine finds it. Runs
start no dashboard: those who test that ask for it."""

import os

from hypothesis import settings

os.environ.setdefault("KUBEALIGN_RUN_DASHBOARD", "off")

settings.register_profile("kubealign", deadline=None)
settings.load_profile("kubealign")

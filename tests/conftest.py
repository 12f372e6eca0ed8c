"""For all tests: property tests are judged by what they find, not by how fast a loaded machine finds it."""

from hypothesis import settings

settings.register_profile("kubealign", deadline=None)
settings.load_profile("kubealign")

"""A package, so that pytest ends the fixture `platform` with the last test of this folder."""

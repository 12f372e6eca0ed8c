"""Redis servers of this machine: the bundled one, and one of version 7 or later."""

import functools
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kubealign.local.servers.redis import find_redis_program


@functools.cache
def redis_version(program: Path) -> tuple[int, ...]:
    """Return the version of a redis-server, such as (7, 0, 15)."""
    text = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=True, timeout=20
    ).stdout
    match = re.search(r"v=([0-9.]+)", text)
    assert match is not None, text
    return tuple(int(part) for part in match[1].split("."))


def redis_7() -> Path:
    """Return a redis-server of version 7 or later on PATH, or skip the test."""
    program = shutil.which("redis-server")
    if program is None or redis_version(Path(program)) < (7,):
        pytest.skip("no redis-server of version 7 or later on PATH")
    return Path(program)


#: Parameters of a fixture: functions that return a program.
PROGRAMS = [pytest.param(find_redis_program, id="bundled"), pytest.param(redis_7, id="redis-7")]

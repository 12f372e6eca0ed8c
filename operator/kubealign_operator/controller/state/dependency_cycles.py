"""Dependency cycles between jobs. Pure."""

from collections.abc import Callable, Iterable


def find_cycle(name: str, dependencies_of: Callable[[str], Iterable[str]]) -> tuple[str, ...]:
    """Find the shortest dependency cycle through a job.

    Args:
        name: The job.
        dependencies_of: Returns the jobs that a job depends on.

    Returns:
        The cycle as `a, b, a` when a depends on b and b on a; empty when there is none.
    """
    seen = {name}
    paths: list[tuple[str, ...]] = [(name,)]
    while paths:
        longer: list[tuple[str, ...]] = []
        for path in paths:
            for dependency in sorted(dependencies_of(path[-1])):
                if dependency == name:
                    return (*path, name)
                if dependency not in seen:
                    seen.add(dependency)
                    longer.append((*path, dependency))
        paths = longer
    return ()

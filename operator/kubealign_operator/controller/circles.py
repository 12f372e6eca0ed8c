"""Jobs that wait for themselves. Pure."""

from collections.abc import Callable, Iterable


def circle(name: str, needs: Callable[[str], Iterable[str]]) -> tuple[str, ...]:
    """The shortest way from a job back to itself, as `a, b, a` when a needs b and b needs a; empty where
    there is none. `needs`: the jobs that a job waits for."""
    seen = {name}
    ways: list[tuple[str, ...]] = [(name,)]
    while ways:
        longer: list[tuple[str, ...]] = []
        for way in ways:
            for following in sorted(needs(way[-1])):
                if following == name:
                    return (*way, name)
                if following not in seen:
                    seen.add(following)
                    longer.append((*way, following))
        ways = longer
    return ()

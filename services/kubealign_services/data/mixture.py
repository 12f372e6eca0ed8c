"""Order of the rows of a mixture: each epoch has a fixed number of draws from each source. Pure.

A source's draws continue from epoch to epoch as passes over its rows, so that all rows of a source are drawn
equally often, up to a difference of one. Pass and position follow from the epoch and the number of draws
per epoch: the cursor of the epoch is sufficient for a job to resume.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from kubealign.spec.sections.data import Mixture
from kubealign_services.data.epoch_shuffle import DatasetOrder, RowDraw, RowOrder, random_order
from kubealign_services.data.errors import DataError
from kubealign_services.data.prepared import DatasetReport
from kubealign_services.data.rows.field_mapping import DataSet


class MixedSource(NamedTuple):
    """A source of a mixture with its number of prepared rows."""

    name: str
    weight: float
    rows: int


class MixtureOrder:
    """Order of the rows of several sources, which are numbered consecutively through all sources.

    An epoch has as many draws as there are rows, shared out by `apportion`. Shuffled, the sources alternate
    at random and each pass of a source has its own order; otherwise the sources alternate evenly and keep
    the order of their rows.
    """

    def __init__(self, sources: Sequence[MixedSource], seed: int, shuffle: bool = True) -> None:
        self._sources, self._seed, self._shuffle = sources, seed, shuffle
        self._firsts = [0, *accumulate(source.rows for source in sources)]
        self._shares = apportion([source.weight for source in sources], self.rows)
        # The latest epoch and the latest pass of each source: larger caches would hold all rows many times.
        self._epoch: tuple[int, _EpochLayout] | None = None
        self._passes: dict[int, tuple[int, Tensor]] = {}

    @property
    def rows(self) -> int:
        return self._firsts[-1]

    @property
    def names(self) -> Sequence[str]:
        return [source.name for source in self._sources]

    def source_of(self, row: int) -> str:
        return self._sources[bisect_right(self._firsts, row) - 1].name

    def draws(self, epoch: int, first: int, end: int) -> list[RowDraw]:
        layout = self._layout(epoch)
        pairs = zip(layout.sources[first:end].tolist(), layout.counts[first:end].tolist(), strict=True)
        return [self._draw(source, epoch * self._shares[source] + count) for source, count in pairs]

    def _draw(self, source: int, number: int) -> RowDraw:
        """Return a draw of a source by its number since the start of the job."""
        source_pass, position = divmod(number, self._sources[source].rows)
        index = int(self._pass_order(source, source_pass)[position]) if self._shuffle else position
        return RowDraw(source_pass, self._firsts[source] + index)

    def _pass_order(self, source: int, source_pass: int) -> Tensor:
        latest = self._passes.get(source)
        if latest is None or latest[0] != source_pass:
            name, _, rows = self._sources[source]
            latest = source_pass, random_order(rows, f"{self._seed}:order:{name}:{source_pass}")
            self._passes[source] = latest
        return latest[1]

    def _layout(self, epoch: int) -> "_EpochLayout":
        if self._epoch is None or self._epoch[0] != epoch:
            key = f"{self._seed}:mixture:{epoch}" if self._shuffle else None
            self._epoch = epoch, _EpochLayout.of_shares(self._shares, key)
        return self._epoch[1]


class _EpochLayout(NamedTuple):
    """Sources of an epoch's draws.

    sources: index of the source of each draw, int64 [rows]. counts: number of earlier draws of the same
    source in the epoch, int64 [rows].
    """

    sources: Tensor
    counts: Tensor

    @classmethod
    def of_shares(cls, shares: Sequence[int], shuffle_key: str | None) -> "_EpochLayout":
        """Lay out the draws at random; without a key evenly."""
        sources = torch.repeat_interleave(torch.arange(len(shares)), torch.tensor(shares))
        counts = torch.cat([torch.arange(share) for share in shares])
        if shuffle_key is None:
            positions = (2 * counts + 1).double() / (2 * torch.tensor(shares)[sources]).double()
            order = torch.argsort(positions, stable=True)
            return cls(sources[order], counts[order])
        sources = sources[random_order(len(sources), shuffle_key)]
        shuffled_counts = torch.empty_like(counts)
        shuffled_counts[torch.argsort(sources, stable=True)] = counts
        return cls(sources, shuffled_counts)


def apportion(weights: Sequence[float], rows: int) -> list[int]:
    """Share out the rows in proportion to the weights by the largest remainder method (Hare quota).

    Every source gets its quota rounded down, and the rows that are left go one each to the largest
    remainders; among equal remainders to the first. The shares sum to `rows`.
    """
    # The decimal numbers as they are written: 0.7 and 0.3 of 10 rows leave no remainder.
    exact = [Fraction(repr(float(weight))) for weight in weights]
    total = sum(exact)
    quotas = [weight * rows / total for weight in exact]
    shares = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda index: shares[index] - quotas[index])
    for index in by_remainder[: rows - sum(shares)]:
        shares[index] += 1
    return shares


def check_shares(mixture: Mixture, rows: Mapping[str, int], spec_path: str) -> None:
    """Raise DataError for a source whose weight gives it no row of an epoch.

    Args:
        rows: Prepared rows of each source, in the order of the mixture.
        spec_path: Path of the data set in the spec.
    """
    total, weights = sum(rows.values()), [entry.weight for entry in mixture]
    for index, share in enumerate(apportion(weights, total)):
        if share == 0:
            raise DataError(
                f"{spec_path}.mixture[{index}].weight: {weights[index]:g} of {sum(weights):g} is too little "
                f"for one of the {total} rows of an epoch, so {mixture[index].name} would never be drawn: "
                "raise it, or remove the entry"
            )


def build_row_order(data: DataSet, report: DatasetReport, seed: int) -> RowOrder:
    """Return the order in which a job draws its prepared rows."""
    if data.mixture is None:
        return DatasetOrder(report.rows_kept, seed, data.shuffle)
    sources = [MixedSource(entry.name, entry.weight, report.sources[entry.name]) for entry in data.mixture]
    return MixtureOrder(sources, seed, data.shuffle)

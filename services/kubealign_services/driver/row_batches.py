"""Rows by name -> a batch, with the companions that the algorithm wants."""

from collections.abc import Sequence

from kubealign_services.batch.packed import Batch
from kubealign_services.data.collate import collate
from kubealign_services.data.mismatched import with_mismatched
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.driver.failures import JobFailed


class RowBatches:
    """Of one data set. kind: the member of spec.data. mismatched: with each row's prompt comes another row's
    response, as a companion. Raises JobFailed where there is no other row."""

    def __init__(self, rows: Sequence[PreparedRow], kind: str, mismatched: bool) -> None:
        if mismatched and len(rows) < 2:
            raise JobFailed(
                f"spec.data.{kind}: at least 2 rows are needed, {len(rows)} is there: each row's prompt is "
                "also read with another row's response"
            )
        self._rows = rows
        self._kind = kind
        self._mismatched = mismatched

    def of(self, names: Sequence[str]) -> Batch:
        """names: PREFIX/ROW, ROW a place among the rows; the prefix is the epoch, say."""
        places = [int(name.rpartition("/")[2]) for name in names]
        batch = collate([self._rows[place] for place in places], names, self._kind)
        return with_mismatched(batch, places, self._rows) if self._mismatched else batch

"""Batches of rows by name, with the mismatched pairs that KTO needs."""

from collections.abc import Mapping, Sequence

from kubealign_services.batch.packed import Batch
from kubealign_services.data.collate import collate
from kubealign_services.data.mismatched_pairs import add_mismatched_pairs
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.roles.driver.errors import UnrecoverableError


class RowBatches:
    """Builder of batches from one data set.

    Args:
        rows: By index, or streamed ones by their number in the source.
        kind: Member of spec.data.
        mismatched_pairs: Add each row's prompt with another row's response as an auxiliary sequence.

    Raises:
        UnrecoverableError: Mismatched pairs are needed and there is no other row.
    """

    def __init__(
        self, rows: Sequence[PreparedRow] | Mapping[int, PreparedRow], kind: str, mismatched_pairs: bool
    ) -> None:
        if mismatched_pairs and len(rows) < 2:
            raise UnrecoverableError(
                f"spec.data.{kind}: at least 2 rows are needed, found {len(rows)}: each row's prompt is "
                "also paired with another row's response"
            )
        self._rows = rows
        self._kind = kind
        self._mismatched_pairs = mismatched_pairs

    def build(self, names: Sequence[str]) -> Batch:
        """Return the batch of the rows with these names.

        Args:
            names: PREFIX/ROW, where ROW is an index into the rows and the prefix is the epoch, for
                example.
        """
        indices = [int(name.rpartition("/")[2]) for name in names]
        batch = collate([self._rows[index] for index in indices], names, self._kind)
        if not self._mismatched_pairs:
            return batch
        # The validation refuses pairs of streamed rows.
        assert isinstance(self._rows, Sequence)
        return add_mismatched_pairs(batch, indices, self._rows)

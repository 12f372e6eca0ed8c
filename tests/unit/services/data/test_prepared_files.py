"""Prepared data as processes without models read it."""

from pathlib import Path

from kubealign_services.data.prepared_files import FOLDER, REPORT, read_longest_context


def test_the_longest_context_is_that_of_both_data_sets(tmp_path: Path) -> None:
    assert read_longest_context(tmp_path) == 0
    (tmp_path / FOLDER).mkdir()
    report = tmp_path / FOLDER / REPORT
    report.write_text('{"train": {"longest_context_bytes": 7}, "validation": null}')
    assert read_longest_context(tmp_path) == 7
    report.write_text('{"train": {"longest_context_bytes": 7}, "validation": {"longest_context_bytes": 9}}')
    assert read_longest_context(tmp_path) == 9

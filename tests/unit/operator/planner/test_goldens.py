"""Golden manifests of complete jobs."""

import pytest

from support.rendering.goldens import CLUSTERS, FOLDER, picture


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_manifests_match_the_golden_file(name: str) -> None:
    committed = (FOLDER / f"{name}.yaml").read_text()
    assert picture(CLUSTERS[name]()) == committed


def test_every_golden_file_has_a_job() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(CLUSTERS)

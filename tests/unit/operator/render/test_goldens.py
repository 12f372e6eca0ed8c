"""What is made of three jobs, to the last field."""

import pytest

from support.rendering.goldens import CLUSTERS, FOLDER, picture


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_job_becomes_what_is_committed(name: str) -> None:
    committed = (FOLDER / f"{name}.yaml").read_text()
    assert picture(CLUSTERS[name]()) == committed


def test_every_picture_is_of_a_job() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(CLUSTERS)

"""Type information of the wheel, for the type checkers of plugin authors (PEP 561)."""

from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

CHECKOUT = Path(__file__).parents[3]


def test_every_package_of_the_wheel_declares_its_types() -> None:
    builder = WheelBuilder(str(CHECKOUT))
    packages = {Path(package).name for package in builder.config.packages}
    assert packages >= {"kubealign", "kubealign_operator", "kubealign_services", "kubealign_dashboard"}
    files = {file.distribution_path for file in builder.recurse_included_files()}
    assert {f"{package}/py.typed" for package in packages} <= files

"""Fixture of promtool."""

import pytest

from support.prometheus_programs import PrometheusMissing, PrometheusPrograms, prometheus_programs


@pytest.fixture(scope="session")
def prometheus() -> PrometheusPrograms:
    """Prometheus' programs. Skips with the reason where they cannot be had."""
    try:
        return prometheus_programs()
    except PrometheusMissing as error:
        pytest.skip(str(error))

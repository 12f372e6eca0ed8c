"""Arguments of the sandbox service."""

from pathlib import Path

import pytest

from kubealign.spec.sections.code_verifier import CodeVerifier
from kubealign_services.scoring.sandbox.programs import TestedProgram
from kubealign_services.scoring.sandbox_server.application import ServiceSettings
from kubealign_services.scoring.sandbox_server.documents import ProgramLimits, program_document
from kubealign_services.scoring.sandbox_server.main import make_parser, read_settings


def settings(*arguments: str, **variables: str) -> ServiceSettings:
    return read_settings(make_parser().parse_args(arguments), variables)


def test_the_defaults_admit_those_of_the_verifier() -> None:
    read = settings()
    asked = program_document(TestedProgram("x", ["assert x"]), CodeVerifier())["limits"]
    assert read.maxima.exceeded_by(ProgramLimits.model_validate(asked)) is None
    assert (read.token, read.tls) == (None, None)


def test_the_token_is_of_the_environment() -> None:
    assert settings("--token-variable", "KEY", KEY="secret").token == "secret"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--token-variable", "KEY"], "--token-variable: the environment variable KEY is not set"),
        (["--verify-clients"], "--verify-clients needs --tls-folder"),
        (["--max-memory-mib", "32"], "--max-memory-mib: 32: .* 64"),
        (["--max-seconds-per-test", "0"], "--max-seconds-per-test: 0.*: .*greater than 0"),
        (["--max-seconds-per-test", "inf"], "--max-seconds-per-test: inf: .*finite"),
    ],
)
def test_invalid_arguments(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(*arguments)


def test_a_folder_without_certificates(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--tls-folder: the certificates of "):
        settings("--tls-folder", str(tmp_path))


@pytest.mark.parametrize("option", ["--parallel-tests", "--programs"])
def test_numbers_below_one(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        settings(option, "0")
    assert "0 must be at least 1" in capsys.readouterr().err

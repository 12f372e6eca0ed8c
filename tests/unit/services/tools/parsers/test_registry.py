"""Choice of the parser: by the chat template, by name, or of a plugin."""

from pathlib import Path

import pytest
import trl

from kubealign.spec.workflows.tool_calls import ToolCallFormat, ToolCallsSpec
from kubealign_services.data.errors import DataError
from kubealign_services.data.tokenization.tool_turns import ToolTurns
from kubealign_services.tools.parsers.pythonic import PythonicParser
from kubealign_services.tools.parsers.registry import PARSERS, detect_format, make_parser
from support.chat_templates import FAMILIES
from support.tool_schemas import ADD


def turns(family: str, published: str | None = None) -> ToolTurns:
    tokenizer = FAMILIES[family].tokenizer()
    if published is not None:
        templates = Path(trl.__file__).parent / "chat_templates"
        tokenizer.chat_template = (templates / f"{published}.jinja").read_text()
    return ToolTurns(tokenizer, [ADD], {}, is_parallel=False)


def spec(**changes: object) -> ToolCallsSpec:
    return ToolCallsSpec.model_validate({"tools": [{"function": {"module": "a:b"}}]} | changes)


@pytest.mark.parametrize(
    ("family", "published", "name"),
    [
        ("qwen25", None, "Hermes"),
        ("qwen3", None, "Hermes"),
        ("llama3", None, "Llama3"),
        ("mistral", None, "Mistral"),
        ("qwen25", "qwen2_5", "Hermes"),
        ("qwen3", "qwen3", "Hermes"),
        ("llama3", "llama3_1", "Llama3"),
        ("llama3", "llama3_2", "Llama3"),
        ("qwen25", "lfm2_2_5", "Pythonic"),
    ],
)
def test_auto_is_the_format_that_the_template_writes(family: str, published: str | None, name: str) -> None:
    assert detect_format(turns(family, published)) == name
    assert type(make_parser(spec(), turns(family, published))) is PARSERS[ToolCallFormat(name)]


def test_an_unknown_format_must_be_named() -> None:
    with pytest.raises(
        DataError,
        match=r"toolCalls\.parser: is Auto, and none of the formats can read .*<function=add>"
        r"(.|\n)*write the model's format, Hermes, Llama3, Mistral, Pythonic, or set parserPlugin",
    ):
        make_parser(spec(), turns("qwen3", "qwen3_5_think"))
    assert isinstance(make_parser(spec(parser="Pythonic"), turns("qwen3", "qwen3_5_think")), PythonicParser)


def test_a_plugin_reads_another_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    information = tmp_path / "dashes-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: dashes\nVersion: 1.0\n")
    points = "[kubealign.tool_call_parsers]\ndashes = dashes:Parser\nnone = dashes:make_none\n"
    (information / "entry_points.txt").write_text(points)
    (tmp_path / "dashes.py").write_text(
        "from kubealign_services.tools.parsers.contract import ToolCall\n"
        "class Parser:\n    def parse(self, text):\n        return [ToolCall(text.strip('-'), {})]\n"
        "def make_none():\n    return None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    parser = make_parser(spec(parserPlugin="dashes"), turns("qwen25"))
    assert [call.name for call in parser.parse("--now--")] == ["now"]  # type: ignore[union-attr]
    with pytest.raises(DataError, match="parserPlugin: none returned None, which has no method parse"):
        make_parser(spec(parserPlugin="none"), turns("qwen25"))
    with pytest.raises(DataError, match=r"parserPlugin: dots is not installed .*: dashes, none"):
        make_parser(spec(parserPlugin="dots"), turns("qwen25"))

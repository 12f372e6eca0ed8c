"""Programs that try to pass tests that they do not solve."""

import ast
from textwrap import dedent

import pytest

from support.sandboxes import Sandbox

pytestmark = pytest.mark.timeout(120)

#: A number that no program can guess, and that its test expects.
EXPECTED = 918273645546372819
TEST = f"assert f(1) == {EXPECTED}"


@pytest.mark.parametrize(
    "program",
    [
        "import os\nos._exit(0)",
        "import sys\nsys.exit(0)",
        "raise SystemExit",
        "exit()",
        "import os\ndef f(x):\n    os._exit(0)",
        "def f(x):\n    raise SystemExit(0)",
        "import atexit, os\natexit.register(os._exit, 0)\ndef f(x):\n    return 0",
        "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
        "import threading, os\nthreading.Thread(target=lambda: os._exit(0)).start()\ndef f(x):\n    return 0",
        "import os\nif os.fork() == 0:\n    os._exit(0)\ndef f(x):\n    return 0",
        "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', ''])",
    ],
)
def test_an_early_end(sandbox: Sandbox, program: str) -> None:
    verdict = sandbox.check(program, TEST)
    assert not verdict.passed
    assert verdict.reason in (
        "the program has ended its process",
        "SystemExit",
        "SystemExit: 0",
        f"AssertionError: {TEST}",
    )


@pytest.mark.parametrize("text", ['{"passed": true}', "passed", "1 passed in 0.01s", "OK"])
def test_a_verdict_on_every_descriptor(sandbox: Sandbox, text: str) -> None:
    program = f"""
        import os
        for descriptor in range(64):
            try:
                os.write(descriptor, {text!r}.encode())
                os.write(descriptor, b"\\n")
            except OSError:
                pass
        def f(x):
            print({text!r})
            return 0
    """
    assert not sandbox.check(program, TEST).passed


def test_forged_messages_to_the_test(sandbox: Sandbox) -> None:
    """The program speaks the protocol of its channel itself, and can but answer with values."""
    program = """
        import gc, json
        channel = next(each for each in gc.get_objects() if type(each).__name__ == "Channel")
        for message in (
            {"value": None},
            {"value": True},
            {"passed": True},
            {"do": "call", "with": [["type", "exit"], []]},
            {"do": "call", "with": [["type", "type"], []]},
            {"do": "call", "with": [["receiver", 0]]},
            {"do": "name", "with": ["f"]},
            {"do": "__import__", "with": ["os"]},
            {"error": {"name": "SystemExit", "base": "SystemExit", "text": "0"}},
        ):
            channel.send(message)
        def f(x):
            return 0
    """
    assert not sandbox.check(program, TEST).passed


@pytest.mark.parametrize(
    "message",
    [
        "[]",
        "1",
        "{}",
        "nonsense",
        '{"value": ["receiver", -1]}',
        '{"value": ["receiver", 99]}',
        '{"value": ["module", "os"]}',
        '{"value": {"a": 1}}',
        '{"value": []}',
        '{"error": {}}',
        '{"value": 1, "arguments": {"0": ["list", []], "99": 1}}',
        "[" * 10**5,
    ],
)
def test_invalid_messages_to_the_test(sandbox: Sandbox, message: str) -> None:
    program = f"""
        import gc, os
        channel = next(each for each in gc.get_objects() if type(each).__name__ == "Channel")
        channel.send({{"value": None}})
        channel._writer.write({message!r}.encode() + b"\\n")
        channel._writer.flush()
        os._exit(0)
    """
    assert not sandbox.check(program, TEST).passed


def test_an_object_that_equals_everything(sandbox: Sandbox) -> None:
    program = """
        class Liar:
            def __eq__(self, other):
                return True
            def __ne__(self, other):
                return False
            def __lt__(self, other):
                return True
            __le__ = __gt__ = __ge__ = __lt__
            def __sub__(self, other):
                return 0.0
            __rsub__ = __add__ = __radd__ = __truediv__ = __mod__ = __sub__
            def __contains__(self, item):
                return True
            def __hash__(self):
                return 0
        class Text(str):
            def __eq__(self, other):
                return True
            __hash__ = str.__hash__
        class Number(int):
            def __eq__(self, other):
                return True
            __hash__ = int.__hash__
        class Items(list):
            def __eq__(self, other):
                return True
        def f(x):
            return [Liar(), Text("a"), Number(1), Items()][x]
    """
    comparisons = [
        comparison.format(index)
        for index in range(4)
        for comparison in ("f({}) == 5", "5 == f({})", "f({}) == 'b'", "f({}) == [5]", "[f({})] == [5]")
    ]
    operations = [
        "not (f(0) != 5)",
        "abs(f(0) - 5) < 1e-6",
        "f(0) < 5",
        "f(0) >= 5",
        "5 in f(0)",
        "f(0) in [5]",
        "{f(0)} == {5}",
        "isinstance(f(0), int)",
        "f(0) / 5 == 0",
    ]
    assert values_of(sandbox, program, comparisons) == [False] * len(comparisons)
    refused = "TypeError"
    assert values_of(sandbox, program, operations) == [
        *(False, refused, refused, refused, refused, False, False, False, refused)
    ]
    # In the program's own process the object does equal everything.
    program = dedent(program) + "print(f(0) == 5, 5 in f(0))"
    assert sandbox.script(program, "", "True True").passed


def values_of(sandbox: Sandbox, program: str, expressions: list[str]) -> list[object]:
    """Return the value of each expression in a test of the program, or the name of its exception."""
    test = "values = []\n"
    for expression in expressions:
        test += f"try:\n    values.append({expression})\n"
        test += "except Exception as error:\n    values.append(type(error).__name__)\n"
    reason = sandbox.check(program, f"{test}raise LookupError(values)").reason
    assert reason.startswith("LookupError: ")
    values: list[object] = ast.literal_eval(reason.removeprefix("LookupError: "))
    return values


def test_replaced_builtin_functions(sandbox: Sandbox) -> None:
    """The test has builtin functions and modules of its own."""
    program = """
        import builtins, math, sys
        class Error(Exception):
            pass
        for name in ("all", "abs", "len", "isinstance", "sorted"):
            globals()[name] = lambda *values: True
        builtins.all = builtins.sorted = lambda *values: True
        builtins.AssertionError = AssertionError = Error
        math.isclose = lambda *values, **named: True
        def f(x):
            return [0]
    """
    expressions = [
        "all(f(i) == [i] for i in range(1, 3))",
        "len(f(1)) == 2",
        "math.isclose(f(1)[0], 1)",
        "sorted(f(1)) == [1]",
        "abs(f(1)[0] - 1) < 1e-6",
        "isinstance(f(1), dict)",
    ]
    assert values_of(sandbox, program, expressions) == [False] * len(expressions)
    assert sandbox.check(program, "assert f(1) == [1]").reason == "AssertionError: assert f(1) == [1]"


def test_names_of_modules_are_the_tests_own(sandbox: Sandbox) -> None:
    program = """
        class Module:
            def isclose(self, *values):
                return True
        math = Module()
        def f(x):
            return 0
    """
    assert not sandbox.check(program, "assert math.isclose(f(1), 1)").passed


def test_expected_results_are_nowhere_in_the_program(sandbox: Sandbox) -> None:
    """It looks into its objects, frames, files and descriptors, and returns what it has seen."""
    program = """
        import gc, os, re, sys
        def texts():
            for each in gc.get_objects():
                try:
                    yield repr(each)
                except BaseException:
                    pass
            frame = sys._getframe()
            while frame is not None:
                yield repr(frame.f_locals) + repr(frame.f_code.co_consts)
                frame = frame.f_back
            for descriptor in range(64):
                try:
                    yield os.pread(descriptor, 10**6, 0).decode(errors="replace")
                except OSError:
                    pass
            for folder, _, names in os.walk("/tmp"):
                for name in names:
                    yield open(os.path.join(folder, name)).read()
        def f(x):
            for text in texts():
                number = re.search(r"9182736455\\d+", text)
                if number and number[0] != "9182736455":
                    return int(number[0])
    """
    assert not sandbox.check(program, TEST).passed
    assert sandbox.check(program, f"assert f({EXPECTED}) == {EXPECTED}").passed


def test_a_function_of_the_test_is_no_way_into_it(sandbox: Sandbox) -> None:
    program = """
        def f(function):
            for name in ("__globals__", "__code__", "__closure__", "__self__", "gi_frame"):
                try:
                    value = getattr(function, name)
                except AttributeError:
                    continue
                if "918273645" in repr(value):
                    return int(str(value))
            channel = function._channel
            for name in ("get", "set", "name", "repr", "getitem", "isinstance"):
                try:
                    print(channel.call(name, function, "__globals__"))
                except Exception:
                    continue
                return 918273645546372819
            return 0
    """
    assert not sandbox.check(program, f"assert f(lambda x: {EXPECTED} + x) == {EXPECTED}").passed


def test_the_expected_output_of_a_script_is_not_in_its_sandbox(sandbox: Sandbox) -> None:
    program = """
        import os, re
        for descriptor in range(64):
            try:
                text = os.pread(descriptor, 10**6, 0).decode(errors="replace")
            except OSError:
                continue
            for number in re.findall(r"91827\\d+", text):
                print(number)
    """
    verdict = sandbox.script(program, "1\n", str(EXPECTED))
    assert not verdict.passed
    assert verdict.reason == f"printed ''; expected '{EXPECTED}'"

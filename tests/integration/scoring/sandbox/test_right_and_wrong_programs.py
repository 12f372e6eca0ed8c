"""Right and wrong programs, with tests of each kind."""

import pytest

from support.sandboxes import Sandbox

pytestmark = pytest.mark.timeout(120)


def test_a_script_reads_its_input(sandbox: Sandbox) -> None:
    program = "a, b = map(int, input().split())\nprint(a + b)  \n\n"
    assert sandbox.script(program, "1 2\n", "3\n").passed
    verdict = sandbox.script(program, "1 2\n", "4")
    assert (verdict.passed, verdict.reason) == (False, "printed '3'; expected '4'")
    verdict = sandbox.script(program, "1\n", "1")
    assert verdict.reason == "ValueError: not enough values to unpack (expected 2, got 1)"


@pytest.mark.parametrize(
    ("printed", "expected", "passed"),
    [
        ("1\n2\n", "1\n2", True),
        ("1 \n2\n\n", "1\n2\n", True),
        ("1\n\n2", "1\n2", False),
        (" 1", "1", False),
        ("", "", True),
        ("a", "", False),
        ("grün", "grün", True),
    ],
)
def test_white_space_at_ends_does_not_count(
    sandbox: Sandbox, printed: str, expected: str, passed: bool
) -> None:
    assert sandbox.script(f"print({printed!r}, end='')", "", expected).passed is passed


def test_a_script_is_the_main_program(sandbox: Sandbox) -> None:
    program = """
        import dataclasses, sys
        @dataclasses.dataclass
        class Point:
            x: int
        def main():
            print(Point(1), sys.argv)
        if __name__ == "__main__":
            main()
    """
    assert sandbox.script(program, "", "Point(x=1) ['program.py']").passed


def test_a_script_with_an_error_fails(sandbox: Sandbox) -> None:
    assert sandbox.script("print(1)\nraise SystemExit(3)", "", "1").reason == "ended with exit status 3"
    assert sandbox.script("print(1)\nraise SystemExit", "", "1").passed
    assert sandbox.script("print(1)\nexit()", "", "1").passed
    assert sandbox.script("print(1", "", "1").reason == "SyntaxError: '(' was never closed"
    assert sandbox.script("import numpy", "", "").reason == "ModuleNotFoundError: No module named 'numpy'"


@pytest.mark.parametrize(
    ("test", "passed"),
    [
        ("assert add(1, 2) == 3", True),
        ("assert add(1, 2) == 4", False),
        ("assert add([1], [(2, None)]) == [1, (2, None)]", True),
        ("assert add((1,), ()) == [1]", False),
        ("assert add({'a': 1} and 'x', 'y') == 'xy'", True),
        ("assert abs(add(0.1, 0.2) - 0.3) < 1e-9", True),
        ("assert add(10 ** 5000, 1) == 10 ** 5000 + 1", True),
        ("assert add(b'a', b'b') == b'ab' and add(True, 1) == 2", True),
        ("assert add(float('inf'), 1) == float('inf') and add(1j, 1) == 1 + 1j", True),
        ("from fractions import Fraction\nassert add(Fraction(1, 2), 1) == Fraction(3, 2)", True),
        ("from datetime import date, timedelta\nassert add(date(2024, 1, 1), timedelta(1)).day == 2", True),
        ("assert math.isclose(add(1, 1), 2)", True),
        ("assert add(a=1, b=2) == 3", True),
        ("assert isinstance(add(1, 2), int)", True),
        ("assert add(1, 2) == 3 and False", False),
        ("assert undefined(1) == 3", False),
        ("assert add('lone \\ud800', '') == 'lone \\ud800'", True),
    ],
)
def test_assertions(sandbox: Sandbox, test: str, passed: bool) -> None:
    assert sandbox.check("def add(a, b):\n    return a + b\n", test).passed is passed


def test_reasons_of_failed_checks(sandbox: Sandbox) -> None:
    add = "def add(a, b):\n    return a - b\n"
    assert sandbox.check(add, "assert add(1, 2) == 3").reason == "AssertionError: assert add(1, 2) == 3"
    assert sandbox.check(add, "assert add(1, 2) == 3, 'a sum'").reason == "AssertionError: a sum"
    assert sandbox.check(add, "assert add('a', 1)").reason.startswith("TypeError: unsupported operand")
    assert (
        sandbox.check("def add(:", "assert add(1, 2)").reason
        == "SyntaxError: invalid syntax (program.py, line 1)"
    )
    assert sandbox.check("x = 1", "assert add(1)").reason == "NameError: name 'add' is not defined"


def test_a_check_function_takes_the_entry_point(sandbox: Sandbox) -> None:
    """The form of HumanEval: the prompt is the beginning of the program."""
    prompt = (
        "from typing import List\nimport math\n\ndef halves(values: List[float]) -> List[float]:\n"
        '    """Return the half of each value."""\n'
    )
    test = """
        METADATA = {"author": "kubealign"}
        def check(candidate):
            assert candidate([2.0, 3.0]) == [1.0, 1.5]
            assert all(math.isclose(a, b) for a, b in zip(candidate([1.0]), [0.5]))
            assert candidate([]) == []
    """
    right = "    return [value / 2 for value in values]\n"
    assert sandbox.check(right, test, prefix=prompt, entry_point="halves").passed
    complete = prompt + right
    assert sandbox.check(complete, test, prefix=prompt, entry_point="halves").passed
    wrong = sandbox.check("    return values\n", test, prefix=prompt, entry_point="halves")
    assert wrong.reason == "AssertionError: assert candidate([2.0, 3.0]) == [1.0, 1.5]"
    other = sandbox.check("    return values\n", test, prefix=prompt, entry_point="thirds")
    assert other.reason == "NameError: the program does not define thirds"


def test_an_entry_point_may_have_the_name_of_a_builtin_function(sandbox: Sandbox) -> None:
    test = "def check(candidate):\n    assert candidate(10, 15) == 6\n    assert sum(10, 15) == 6\n"
    program = "def sum(a, b):\n    return sum_of(a, b)\ndef sum_of(a, b):\n    return 6\n"
    assert sandbox.check(program, test, entry_point="sum").passed


def test_setup_code_and_objects_of_the_program(sandbox: Sandbox) -> None:
    """The form of MBPP with classes: the tests make objects that live in the program."""
    setup = "class Node:\n    def __init__(self, value):\n        self.value, self.left = value, None\n"
    test = """
        root = Node(1)
        root.left = Node(2)
        assert depth(root) == 2 and root.left.value == 2
        assert isinstance(root, Node) and not isinstance(1, Node)
        assert root == root and root != root.left
    """
    program = "def depth(node):\n    return 0 if node is None else 1 + depth(node.left)\n"
    assert sandbox.check(program, test, setup=setup).passed
    assert not sandbox.check("def depth(node):\n    return 1\n", test, setup=setup).passed


def test_protocols_of_the_programs_objects(sandbox: Sandbox) -> None:
    program = """
        class Empty(Exception):
            pass
        class Stack:
            def __init__(self):
                self.items = []
            def push(self, item):
                self.items.append(item)
            def pop(self):
                if not self.items:
                    raise Empty("no items")
                return self.items.pop()
            def __len__(self):
                return len(self.items)
            def __getitem__(self, index):
                return self.items[index]
            def __enter__(self):
                return self
            def __exit__(self, *error):
                self.items.clear()
            def __add__(self, other):
                return self.items + other.items
            def __lt__(self, other):
                return len(self) < len(other)
        def squares(n):
            yield from (i * i for i in range(n))
        def apply(function, values):
            return [function(value) for value in values]
        def sort(values):
            values.sort()
    """
    test = """
        stack, other = Stack(), Stack()
        try:
            stack.pop()
            assert False, "popped"
        except Empty as error:
            assert str(error) == "no items"
        stack.push(1)
        stack.push([2])
        assert len(stack) == 2 and stack[1] == [2] and list(stack) == [1, [2]]
        assert other < stack and stack + other == [1, [2]]
        with stack as same:
            assert same is stack and stack.pop() == [2]
        assert len(stack) == 0 and not stack
        assert list(squares(4)) == [0, 1, 4, 9] and next(squares(1)) == 0
        factor = 3
        assert apply(lambda value: value * factor, [1, 2]) == [3, 6]
        values = [3, 1, 2]
        assert sort(values) is None and values == [1, 2, 3]
        try:
            apply(len, [1])
        except TypeError as error:
            assert "has no len" in str(error)
        else:
            assert False
    """
    assert sandbox.check(program, test).passed


def test_each_check_has_a_program_of_its_own(sandbox: Sandbox) -> None:
    program = "calls = []\ndef count():\n    calls.append(1)\n    return len(calls)\n"
    assert sandbox.check(program, "assert count() == 1").passed
    assert sandbox.check(program, "assert count() == 1 and count() == 2").passed

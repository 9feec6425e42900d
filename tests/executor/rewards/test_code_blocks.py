"""Which of a response's blocks is its solution."""

import random

import pytest

from rlplan.executor.rewards.kinds.code_blocks import solution_of

ADD = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return 0\n"
DOUBLE = "n = int(input())\nprint(2 * n)\n"
NEEDS = frozenset({"add"})
QUOTING = 'def add(a, b):\n    """Add.\n\n    ```python\n    add(1, 2)\n    ```\n    """\n    return a + b\n'


def fenced(source, tag="python", marks="```"):
    return f"{marks}{tag}\n{source}{marks}\n"


def indented(text, by):
    return "".join(f"{by}{line}" if line.strip() else line for line in text.splitlines(keepends=True))


# Most usual forms are lines of tests/verdicts/code.jsonl ("extraction: ...").
FORMS = {
    "a python tag": fenced(ADD),
    "a tag with a version": fenced(ADD, "python3"),
    "a space after the tag": fenced(ADD, "python "),
    "a file name": fenced(ADD, "python:solution.py"),
    "a tag in the next line": f"```\npython\n{ADD}```\n",
    "tildes without a tag": fenced(ADD, "", "~~~~"),
    "five backticks": fenced(ADD, "python", "`````"),
    "four backticks with three inside": fenced("s = '''\n```\n'''\n" + ADD, "python", "````"),
    "a longer closing fence": f"```python\n{ADD}`````\n",
    "no newline after the closing fence": fenced(ADD).rstrip("\n"),
    "spaces after the closing fence": f"```python\n{ADD}```   \n",
    "words before": f"I add them.\n\n{fenced(ADD)}\nDone.",
    "the line of a list item": f"- {indented(fenced(ADD), '  ').lstrip()}",
    "a fence indented more than its code": f"  ```python\n{ADD}  ```\n",
    "tabs and no fence": f"The code is\n\n{indented(ADD, chr(9))}\nand that is all.",
    "the closing fence at the end, another block later": f"```python\n{ADD.rstrip()}```\nThen\n{fenced('add(1, 2)')}",
    "a prompt that has opened the fence": f"{ADD}```\nThis adds.\n",
    "words before that are Python too": "Note: x = 3\nDone (at last)\n" + fenced(ADD, ""),
    "an end token behind the closing fence": f"```python\n{ADD}```<|im_end|>",
    "solution tags": f"<|begin_of_solution|>\n{fenced(ADD)}<|end_of_solution|>",
    "a thought that the prompt opened": f"Maybe\n{fenced(WRONG)}</think>\n{fenced(ADD)}",
    "a thought about tags": f"<think>In <answer> tags, {fenced(WRONG)}</think><answer>{fenced(ADD)}</answer>",
    "a thought and nothing after": f"<think>\n{fenced(ADD)}</think>\nThat is it.",
    "an answer and then a draft": f"<answer>{fenced(ADD)}</answer>\nNot this:\n{fenced(WRONG)}",
    "a signature before": fenced("def add(a, b):\n    ...\n") + fenced(ADD),
    "a signature after": fenced(ADD) + fenced('def add(a, b):\n    """Add."""\n'),
    "usage that stores after": fenced(ADD) + fenced("total = add(1, 2)\nprint(total)\n", ""),
    "usage that imports after": fenced(ADD) + fenced("from solution import add\nprint(add(1, 2))\n"),
    "unittest after": fenced(ADD) + fenced("import unittest\nclass T(unittest.TestCase):\n    x = add(1, 2)\n"),
    "JSON after": fenced(ADD) + fenced('{"a": 1}\n', "json"),
    "another language after": fenced(ADD) + fenced("int add(int a, int b) {\n  return a + b;\n}\n", "cpp"),
    "Ruby after": fenced(ADD) + fenced("def add(a, b)\n  a - b\nend\n", "ruby"),
    "a block that is cut off after": fenced(ADD) + f"```python\n{WRONG}",
    "a block that is cut off before": f"```python\ndef add(a, b:\n\nAgain:\n{fenced(ADD)}",
    "Markdown around it": f"````markdown\nThis:\n{fenced(ADD)}````\n",
    "Markdown of three backticks around it": f"```markdown\nThis:\n{fenced(ADD)}```\n",
    "inline code before": f"We use ```add``` and `sum`.\n{fenced(ADD)}",
    "tildes inside backticks": fenced("s = '''\n~~~\n'''\n" + ADD),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_solution_is_found_in_every_form(form):
    names: dict[str, object] = {}
    source = solution_of(FORMS[form], NEEDS, False)
    assert source is not None
    exec(source, names)
    assert names["add"](1, 2) == 3  # type: ignore[operator]
    assert "test_add" not in source
    assert "total" not in source


@pytest.mark.parametrize(
    "source",
    [
        QUOTING,
        'def add(a, b):\n    fence = """\n```\n"""\n    return a + b\n',
        "def add(a, b):\n    fence = '''\n```python\npass\n```\n'''\n    return a + b\n",
        'def add(a, b):\n    fence = "```"\n    return a + b\n',
        "def add(a, b):\n    # written in ```\n    return a + b\n",
        'DOC = """\n```\none\n```\n```\ntwo\n```\n"""\ndef add(a, b):\n    return a + b\n',
    ],
)
def test_backticks_in_strings_do_not_end_the_block(source):
    assert solution_of(f"Here:\n{fenced(source)}Bye.", NEEDS, False) == source
    assert solution_of(f"Here:\n{fenced(source)}Use:\n{fenced('print(add(1, 2))')}", NEEDS, False) == source


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("async def add(a, b):\n    return a + b\n", "add"),
        ("class Stack:\n    pass\n", "Stack"),
        ("class Solution:\n    def add(self, a, b):\n        return a + b\n", "add"),
        ("class Solution:\n    def add(self, a, b):\n        return a + b\n", "Solution"),
        ("add = lambda a, b: a + b\n", "add"),
        ("first, add = 1, sum\n", "add"),
        ("add: object = sum\n", "add"),
        ("from operator import add\n", "add"),
        ("from math import gcd as add\n", "add"),
        ("import math as add\n", "add"),
        ("if True:\n    def add(a, b):\n        return a + b\n", "add"),
        ("try:\n    from math import add\nexcept ImportError:\n    def add(a, b):\n        return a + b\n", "add"),
    ],
)
def test_a_name_may_be_defined_in_many_ways(source, name):
    after = fenced("def other():\n    return 1\n")
    assert solution_of(fenced(source) + after, frozenset({name}), False) == source


def test_a_block_is_joined_with_earlier_ones_that_it_needs():
    imports, helper = "import math\n", "def half(n):\n    return n // 2\n"
    solution = "def area(n):\n    return half(n) * math.pi\n"
    blocks = [fenced(imports), fenced("def unused():\n    return 0\n"), fenced(helper), fenced(solution)]
    assert solution_of("Then\n".join(blocks), frozenset({"area"}), False) == "\n\n".join([imports, helper, solution])


def test_blocks_that_define_all_together_are_joined():
    one, two = "def one():\n    return 1\n", "def two():\n    return 2\n"
    needs = frozenset({"one", "two"})
    assert solution_of(fenced(two) + fenced(one), needs, False) == f"{two}\n\n{one}"
    assert solution_of(fenced(one + two) + fenced(one), needs, False) == one + two
    assert solution_of(fenced(one) + fenced("pass\n"), needs, False) == one


def test_the_last_definition_counts_also_if_it_is_wrong():
    assert solution_of(fenced(ADD) + fenced(WRONG), NEEDS, False) == WRONG
    broken = "def add(a, b):\n    return a +\n"
    assert solution_of(fenced(ADD) + "Better:\n" + fenced(broken), NEEDS, False) == broken


def test_without_the_name_the_last_code_counts_and_fails():
    other = "def plus(a, b):\n    return a + b\n"
    assert solution_of(fenced(other) + fenced("print(plus(1, 2))\n"), NEEDS, False) == other
    assert solution_of(fenced("def add(a, b:\n"), NEEDS, False) == "def add(a, b:\n"
    assert solution_of(fenced("import os\nos._exit(0)\n"), NEEDS, False) == "import os\nos._exit(0)\n"
    assert solution_of(f"<think>{fenced(ADD)}</think>{fenced(other)}", NEEDS, False) == other


@pytest.mark.parametrize(
    "response",
    [
        "",
        "I do not know.",
        "42",
        "The answer is add.",
        f"```python\n{ADD}",
        "```python\ndef main():\n\n    n = int(input())\n    print(n)\n",
        f"<think>\n```python\n{ADD}",
        "```\n>>> add(1, 2)\n3\n```\n",
        "```bash\npip install --upgrade numpy\n```\n",
        "\x00",
    ],
)
@pytest.mark.parametrize("reads_stdin", [False, True])
def test_a_response_without_complete_code_has_no_solution(response, reads_stdin):
    assert solution_of(response, frozenset() if reads_stdin else NEEDS, reads_stdin) is None


@pytest.mark.parametrize(
    "after",
    [
        "",
        fenced("3\n", "") + fenced("6\n", ""),
        fenced("Input: 3\nOutput: 6\n", ""),
        fenced("echo 3 | python solution.py\n", "bash"),
        fenced("n = int(input())\n") + "reads the number.",
        fenced("print(2 * 3)\n") + "prints 6.",
        fenced("print(2 * n)\n") + "prints it.",
        fenced("import io, sys\nsys.stdin = io.StringIO('3')\nprint(double(3))\n"),
        fenced("def double(n):\n    return 2 * n\n") + "would do too.",
    ],
)
@pytest.mark.parametrize(
    "program",
    [
        DOUBLE,
        "import sys\nn = int(sys.stdin.read())\nprint(2 * n)\n",
        "from sys import stdin, stdout\nstdout.write(str(2 * int(stdin.readline())))\n",
        "print(2 * int(open(0).read()))\n",
        "import os\nos.write(1, str(2 * int(os.read(0, 99))).encode())\n",
        "import fileinput\nfor line in fileinput.input():\n    print(2 * int(line))\n",
        "import sys\nsys.setrecursionlimit(10**6)\ndef main():\n    print(2 * int(input()))\n"
        "if __name__ == '__main__':\n    main()\n",
        "import sys\ninput = sys.stdin.readline\nprint(2 * int(input()))\n",
    ],
)
def test_a_program_on_standard_input_is_not_replaced(program, after):
    assert solution_of(f"So:\n{fenced(program)}{after}", frozenset(), True) == program


def test_a_program_is_joined_with_what_it_calls():
    helper = "import sys\nsys.setrecursionlimit(10**6)\ndef main():\n    print(2 * int(input()))\n"
    assert solution_of(fenced(helper) + "Run it:\n" + fenced("main()\n"), frozenset(), True) == f"{helper}\n\nmain()\n"
    double = "def double(n):\n    return 2 * n\n"
    program = "print(double(int(input())))\n"
    assert solution_of(fenced(double) + fenced(program), frozenset(), True) == f"{double}\n\n{program}"


def test_a_program_without_input_is_one_that_prints():
    assert solution_of(fenced("print(6)\n") + fenced("6\n", ""), frozenset(), True) == "print(6)\n"
    assert solution_of(fenced("def f(n):\n    return n\n"), frozenset(), True) == "def f(n):\n    return n\n"


def test_without_needs_the_last_block_that_defines_counts():
    assert solution_of(fenced(ADD) + fenced("print(add(1, 2))\n"), frozenset(), False) == ADD
    assert solution_of(fenced("x = 3\n") + fenced("3\n", ""), frozenset(), False) == "x = 3\n"


@pytest.mark.parametrize(
    "hostile",
    [
        "```\n" * 20_000,
        "`" * 200_000 + "x`",
        "```" + " " * 200_000,
        "```python\n(\n" * 5_000 + "```\n",
        '```\n"""\n' + "```\n" * 5_000,
        "<answer>" * 20_000,
        "```python\n" + "(" * 10_000 + "\n```\n",
        "```python\n" + "-" * 100_000 + "1\n```\n",
        "```python\nx = " + "[" * 150 + "]" * 150 + "\n```\n",
        "".join(f"```python\ndef f{at}(n):\n    return f{at + 1}(n)\n```\n" for at in range(3_000)),
    ],
    ids=range(10),
)
def test_a_response_of_many_fences_is_read_to_its_end(hostile):
    source = solution_of(hostile + "\n~~~~~~python\n" + ADD + "~~~~~~\n", NEEDS, False)
    assert source is None or "add" in source or source in hostile


PROSE = (
    "We add them.\n",
    "Here is *the* solution:\n",
    "1. First\n2. Second\n",
    "> a quote\n",
    "It uses ```add``` and `~~~`.\n",
    "| a | b |\n|---|---|\n",
    "Note: x = 3\n",
    "### Complexity (final)\n",
)
BESIDE = (
    "print(add(1, 2))\n",
    "3\n",
    "pip install numpy\n",
    ">>> add(1, 2)\n3\n",
    "from solution import add\nassert add(1, 2) == 3\n",
    "def test_add():\n    assert add(1, 2) == 3\n",
    '{"a": [1, 2]}\n',
    "def add(a: int, b: int) -> int: ...\n",
    "int add(int a, int b) {\n  return a + b;\n}\n",
)


def test_the_solution_is_found_between_any_prose_and_other_blocks():
    seed = random.randrange(10**9)
    rng = random.Random(seed)

    def block(source, tags):
        marks = rng.choice(["```", "````", "~~~"])
        lines = f"{marks}{rng.choice(tags)}\n{source}{marks}\n"
        return "\n" + indented(lines, " " * rng.choice([0, 0, 2, 4])) + "\n"

    def around():
        return [
            rng.choice([*PROSE, block(rng.choice(BESIDE), ["", "text", "python"])]) for _ in range(rng.randrange(4))
        ]

    for _ in range(500):
        source = rng.choice([ADD, QUOTING, f"import math\n\n\nclass Solution:\n{indented(ADD, '    ')}"])
        draft = [block(WRONG, ["python"]), "Wait.\n"] if rng.random() < 0.3 else []
        response = "".join(
            [*around(), *draft, block(source, ["python", "", "py", "{.python}", 'python a="b"']), *around()]
        )
        found = solution_of(response, NEEDS, False)
        assert found is not None, (seed, response)
        assert found.strip() == source.strip(), (seed, response)

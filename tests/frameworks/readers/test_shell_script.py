"""Scripts are read as a shell would run them, up to what follows from the machine."""

import pytest

from rlplan.frameworks.readers.shell_script import shell_commands
from rlplan.plans.yaml.errors import InputError


def commands(tmp_path, text, **files):
    for name, content in files.items():
        (tmp_path / f"{name}.sh").write_text(content)
    script = tmp_path / "run.sh"
    script.write_text(text)
    return [command.texts() for command in shell_commands(script, text).commands]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a=3\nrun x=$a y=${a} z='$a' w=\"$a\"", ["run", "x=3", "y=3", "z=$a", "w=3"]),
        ("run ${a:-5} ${b:=6} $b ${c-7}", ["run", "5", "6", "6", "7"]),
        ("a=4\nrun $((a * 1024 / 2)) $(( $a + 1 ))", ["run", "2048", "5"]),
        (
            "A=(--x 1 # note\n --y '2 3')\nA+=(--z)\nrun \"${A[@]}\" ${#A[@]}",
            ["run", "--x", "1", "--y", "2 3", "--z", "5"],
        ),
        ('A="--x 1 --y"\nrun $A "$A"', ["run", "--x", "1", "--y", "--x 1 --y"]),
        ("run a \\\n  b # c\n", ["run", "a", "b"]),
        ('run ${NONE[@]} $@ "$@" "" x', ["run", "", "x"]),
        ("M=/m/Qwen3-4B/\nrun $(basename $M) ${M##*/m/} $(seq 1 3)", ["run", "Qwen3-4B", "Qwen3-4B/", "1", "2", "3"]),
        ("n=8\nif [ $n -gt 4 ]; then T=2; else T=1; fi\nrun $T", ["run", "2"]),
        ("n=2\nif [[ $n == 1 ]]; then T=2; elif (( n > 1 )); then T=3; else T=1; fi\nrun $T", ["run", "3"]),
        ("case b in a) T=1;; b|c) T=2;; esac\nrun $T", ["run", "2"]),
        ("go() { run $X; }\nX=1\ngo", ["run", "1"]),
        ('cat <<EOF > f\nrun wrong "\nEOF\nrun right > log 2>&1', ["cat"]),
        ("for i in 4 5; do run $i; done", ["run", "4"]),
        ("export A=1 B=2\nC=3 run $A$B", ["run", "12"]),
    ],
)
def test_words_are_those_that_a_shell_makes(tmp_path, text, words):
    assert commands(tmp_path, text)[0] == words


def test_sourced_files_and_started_scripts_are_gone_through(tmp_path):
    here = '"$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"'
    main = f'HERE={here}\nsource "$HERE/model.sh"\nrun $SIZE\nbash other.sh a=1'
    assert commands(tmp_path, main, model="SIZE=7", other="run first $@ last") == [
        ["run", "7"],
        ["run", "first", "a=1", "last"],
    ]


def test_what_is_not_known_is_named_and_kept(tmp_path):
    text = "x=$UNSET/b\nsource gone.sh\nrun $x $(nproc)"
    script = shell_commands(tmp_path / "run.sh", text)
    assert [word.unresolved for word in script.commands[0].words] == [(), ("$UNSET",), ("$(nproc)",)]
    assert script.commands[0].words[1].text == "$UNSET/b"
    assert [word.text for word in script.missing] == ["gone.sh"]


def test_words_have_the_lines_they_stand_on(tmp_path):
    text = "A=(\n  --x 1\n  --y\n)\nrun ${A[@]} \\\n  z"
    (command,) = shell_commands(tmp_path / "run.sh", text).commands
    assert [(word.text, word.line) for word in command.words] == [
        ("run", 5),
        ("--x", 2),
        ("1", 2),
        ("--y", 3),
        ("z", 6),
    ]


@pytest.mark.parametrize("text", ["run 'x", 'a="$(b', "A=(1 2", "run ${x"])
def test_an_unclosed_quote_is_one_line_with_its_place(tmp_path, text):
    with pytest.raises(InputError, match=r"run\.sh:1: what begins here"):
        shell_commands(tmp_path / "run.sh", text)


def test_no_script_runs_for_ever_or_runs_anything(tmp_path):
    text = "rm -rf x $(touch made)\nf() { f; f; }\nsource run.sh\nwhile true; do f; done\n"
    (tmp_path / "run.sh").write_text(text)
    assert shell_commands(tmp_path / "run.sh", text).commands
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("line", ["A=$A$A$A\n", 'A=("${A[@]}" "${A[@]}")\n'])
def test_variables_that_double_do_not_fill_the_memory(tmp_path, line):
    script = "A=0123456789\n" + 40 * line + "python train.py $A"
    (command,) = shell_commands(tmp_path / "run.sh", script).commands
    assert sum(map(len, command.texts())) < 200_000

"""What YAML takes in silence, or explains in its own terms, is one line with the file, its line and what to do."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import SettingsError
from app.yaml_file import read_yaml


def refusal(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "f.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingsError) as caught:
        read_yaml(path)
    return str(caught.value).removeprefix(str(path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: 2\na: 3\n", ", line 3: `a` stands on line 1 too: leave one of them"),
        ("x:\n  - {b: 1}\n  - {b: 1, b: 2}\n", ", line 3: `b` stands on line 3 too: leave one of them"),
        ("a: 010\n", ", line 1: 010 is 8 to YAML: write 8, or put it in quotes if it is a text"),
        ("a:\n  - 22:22\n", ", line 2: 22:22 is 1342 to YAML: write 1342, or put it in quotes if it is a text"),
        ("a:\n\tb: 1\n", ", line 2: a tab stands where YAML wants spaces: indent with spaces"),
        ("a: 1\n---\nb: 2\n", ", line 2: a second document begins (`---`): a file has one"),
        ("a: [", ", line 1: not valid YAML: expected the node content, but found '<stream end>'"),
        ("a: *b\n", ", line 1: not valid YAML: found undefined alias 'b'"),
        (b"a: \xff", ": is not a text in UTF-8 (byte 3): save it as UTF-8"),
        ("a: 2026-13-40\n", ": has a value that cannot be read (month must be in 1..12): put it in quotes"),
        ("[" * 5000, ": is nested too deeply"),
    ],
)
def test_one_line_says_where_and_what(tmp_path: Path, text: str | bytes, says: str) -> None:
    assert refusal(tmp_path, text) == says


def test_what_is_no_mistake_is_read_as_ray_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("base: &b {x: 1, y: 0o7}\nother: {<<: *b, x: 2}\nn: [0, -5, 1_000, '010', 0x10, 1.5]\n")
    document = read_yaml(path).document
    assert document == {
        "base": {"x": 1, "y": "0o7"},
        "other": {"x": 2, "y": "0o7"},
        "n": [0, -5, 1000, "010", 16, 1.5],
    }


def test_a_path_of_keys_leads_to_its_line_or_to_that_of_what_is_around_it(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("a:\n  - b: 1\n    c:\n      d: 2\n")
    at = read_yaml(path).at
    assert at(("a", 0, "c", "d")) == f"{path}, line 4"
    assert at(("a", 0, "c", "nothing", "there")) == f"{path}, line 3"
    assert at(()) == str(path)
    assert at(("z",)) == str(path)


def test_aliases_of_aliases_take_no_time(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 40)]
    path.write_text("\n".join(["l0: &l0 [x]", *levels]))
    assert "l39" in read_yaml(path).document


@given(st.text(alphabet="ab:-[]{}&*#\n\t 01'\"!<>|%@", max_size=40))
def test_nothing_but_settings_errors_leaves_whatever_stands_in_the_file(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text)
    with suppress(SettingsError):
        read_yaml(path)

"""The grammar of nats.conf: what the official server reads, and errors that say where."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.server.config.conf_parser import ConfMap, ConfNode, parse, parse_file

pytestmark = pytest.mark.feature("operations.configuration")


def values(tree: ConfMap) -> dict[str, object]:
    """The tree as plain values."""
    return {key: plain(node) for key, _, node in tree}


def plain(node: ConfNode) -> object:
    if isinstance(node.value, ConfMap):
        return values(node.value)
    if isinstance(node.value, list):
        return [plain(entry) for entry in node.value]
    return node.value


def read(
    text: str, environ: dict[str, str] | None = None, files: dict[str, str] | None = None
) -> dict[str, object]:
    def open_file(path: str) -> str:
        if path not in (files or {}):
            raise FileNotFoundError(2, "no such file or directory", path)
        return (files or {})[path]

    return values(parse(text, "t.conf", environ=environ or {}, open_file=open_file))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1", {"a": 1}),
        ("a = 1", {"a": 1}),
        ("a 1", {"a": 1}),
        ("a=1", {"a": 1}),
        ('"a b": 1', {"a b": 1}),
        ("a: 1\nb: 2", {"a": 1, "b": 2}),
        ("a: 1; b: 2", {"a": 1, "b": 2}),
        ("a: 1, b: 2", {"a": 1, "b": 2}),
        ("{a: 1, b: 2}", {"a": 1, "b": 2}),
        ("a: 1\na: 2", {"a": 2}),
        ("# c\na: 1 # c\n// c\nb: 2 // c", {"a": 1, "b": 2}),
        ("a { b: 1, c { d: x } }", {"a": {"b": 1, "c": {"d": "x"}}}),
        ("a {\n b: 1\n c: 2\n}\n", {"a": {"b": 1, "c": 2}}),
        ("a {\n b:\n 1\n}", {"a": {"b": 1}}),
        ("a: [1, 2, 3,]", {"a": [1, 2, 3]}),
        ("a: [\n 1\n 2 # c\n]", {"a": [1, 2]}),
        ("a: [{b: 1}, {b: 2}]", {"a": [{"b": 1}, {"b": 2}]}),
        ("a: []\nb {}", {"a": [], "b": {}}),
        ("a: (\nx y\n z\n)\nb: 1", {"a": "x y\n z", "b": 1}),
        ("", {}),
        ("\r\na: 1\r\n", {"a": 1}),
    ],
)
def test_items_maps_arrays_and_comments(text: str, expected: dict[str, object]) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("TRUE", True),
        ("yes", True),
        ("On", True),
        ("false", False),
        ("no", False),
        ("OFF", False),
        ("12", 12),
        ("-12", -12),
        ("1k", 1000),
        ("2M", 2_000_000),
        ("1kb", 1024),
        ("2MiB", 2 * 1024 * 1024),
        ("3gi", 3 * 1024**3),
        ("2s", "2s"),
        ("1.5", 1.5),
        ("1.", "1."),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1:4222", "127.0.0.1:4222"),
        ("2024-01-02T03:04:05Z", datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("'a\\nb'", "a\\nb"),
        ('"a\\n\\x41\\""', 'a\nA"'),
        ("a\\tb", "a\tb"),
        ("'12'", "12"),
        ("$2a$11$abc", "$2a$11$abc"),
    ],
)
def test_values(word: str, expected: object) -> None:
    found = read(f"a: {word}")["a"]
    assert found == expected
    assert type(found) is type(expected)


def test_a_variable_is_the_nearest_key_of_the_maps_around_it() -> None:
    assert read("x: 1\na { x: 2\n b { c: $x } }\nd: $x") == {"x": 1, "a": {"x": 2, "b": {"c": 2}}, "d": 1}


def test_a_variable_may_hold_a_block() -> None:
    assert read("S = {user: a}\na: $S")["a"] == {"user": "a"}


def test_a_variable_from_the_environment_is_parsed() -> None:
    assert read("a: $P\nb: $Q", environ={"P": "4222", "Q": "$P"}) == {"a": 4222, "b": 4222}


def test_variables_of_the_environment_in_a_circle_are_refused() -> None:
    with pytest.raises(ConfigError, match="cycle"):
        read("a: $P", environ={"P": "$Q", "Q": "$P"})


def test_a_variable_must_be_defined_before_it_is_used() -> None:
    with pytest.raises(ConfigError, match=r"t\.conf:1:4: variable reference for 'b'"):
        read("a: $b\nb: 1")


def test_include_merges_into_the_current_map() -> None:
    files = {"users.conf": "p: x\nuser: a\npass: $p"}
    auth = read("auth {\n include 'users.conf'\n again: $p\n}", files=files)["auth"]
    assert auth == {"p": "x", "user": "a", "pass": "x", "again": "x"}


def test_an_included_file_does_not_know_the_variables_of_the_one_that_includes_it() -> None:
    with pytest.raises(ConfigError, match="variable reference for 'p' on line 1 can not be found"):
        read("p: x\ninclude 'one.conf'", files={"one.conf": "pass: $p"})


def test_include_paths_start_at_the_including_file() -> None:
    files = {"d/one.conf": "include two.conf", "d/two.conf": "a: 1"}
    assert read("include 'd/one.conf'", files=files) == {"a": 1}


def test_an_error_in_an_included_file_names_that_file() -> None:
    with pytest.raises(ConfigError, match=r"^one\.conf:2:1: "):
        read("include one.conf", files={"one.conf": "a: 1\n]"})


def test_files_that_include_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="inside each other"):
        read("include one.conf", files={"one.conf": "include one.conf"})


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("include nope.conf", "t.conf:1:1"),
        ("a: 1 b: 2", "t.conf:1:6"),
        ("a {\n b: 1\n", "t.conf:3:1"),
        ("a: [1, 2", "t.conf:1:9"),
        ('a: "x', "t.conf:1:5"),
        ('a: "\\q"', "t.conf:1:7"),
        ('a: "\\xZZ"', "t.conf:1:7"),
        ("\n  a:\n", "t.conf:2:3"),
        ("a: (\n x", "t.conf:1:4"),
        ("{a: 1} b: 2", "t.conf:1:8"),
        (": 1", "t.conf:1:1"),
    ],
)
def test_an_error_says_where(text: str, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value).startswith(f"{where}: ")


def test_keys_used_as_variables_are_marked() -> None:
    tree = parse("x: 1\ny: 2\nport: $x", environ={})
    assert {key: node.used for key, _, node in tree} == {"x": True, "y": False, "port": False}


@given(st.text(alphabet="ab1{}[]():=,;#/'\"\\$ \n\t", max_size=40))
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    refused: ConfigError | None = None
    try:
        parse(text, "t.conf", environ={}, open_file=lambda path: "a: 1")
    except ConfigError as error:
        refused = error
    assert refused is None or None not in (refused.file, refused.line, refused.column)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "1" * 5000, "is out of the range"),
        ("a: 9223372036854775808", "integer '9223372036854775808' is out of the range"),
        ("a: " + "1" * 5000 + "KB", "is out of the range"),
        ("a: 8EB", "integer '8EB' is out of the range"),
        ("a: 10e", "integer '10e' is out of the range"),
        ("a: -9EiB", "integer '-9EiB' is out of the range"),
        ("a: " + "9" * 400 + ".5", "is out of the range"),
        ("a: 2024-99-99T00:00:00Z", "expected Zulu formatted DateTime"),
        ("a: " + "[" * 50_000, "more than 100 maps and arrays inside each other"),
        ("a: " + "{b:" * 50_000, "more than 100 maps and arrays inside each other"),
        ("include 'a\0b'", "a NUL character"),
        ('pid_file: "a\\x00b"', "a NUL character"),
    ],
)
def test_what_no_number_or_stack_holds_is_an_error_with_a_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse(text, "t.conf", environ={})
    assert caught.value.line == 1


def test_depth_of_a_variable_from_the_environment_counts_where_it_is_used() -> None:
    environ = {"DEEP": "[" * 60 + "]" * 60}
    assert parse("a: $DEEP", environ=environ)
    with pytest.raises(ConfigError, match="more than 100 maps and arrays"):
        parse("a: " + "[" * 60 + "$DEEP" + "]" * 60, environ=environ)


def test_digits_of_other_scripts_are_no_number() -> None:
    assert read("a: ١٢٣") == {"a": "١٢٣"}


def test_a_file_that_is_no_text_is_a_configuration_error(tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    path.write_bytes(b"port: 4222\nserver_name: \xff")
    with pytest.raises(ConfigError, match="not UTF-8: byte 24 is 0xff"):
        parse_file(str(path))


def test_places_are_right_behind_texts_and_blocks_of_many_lines() -> None:
    text = "a: 'x\ny'\nb: (\n one\n two\n)\n# c\n\n  d: [\n1\n2 }"
    with pytest.raises(ConfigError) as caught:
        parse(text, "t.conf", environ={})
    assert (caught.value.line, caught.value.column) == (11, 3)


def test_a_variable_from_the_environment_that_is_no_text_is_an_error() -> None:
    with pytest.raises(ConfigError, match="variable 'V' from the environment is not UTF-8"):
        parse("a: $V", environ={"V": b"x\xff".decode("utf-8", "surrogateescape")})

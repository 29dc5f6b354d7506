"""Words to values, and what is said of words that can't be."""

from __future__ import annotations

import pytest

from penstock.cli.framework.command_parser import UsageError, parse_command
from penstock.cli.framework.command_table import Argument, Command, CommandGroup, Option
from penstock.cli.framework.command_values import CommandValues
from penstock.cli.framework.suggestions import suggestion
from penstock.cli.framework.value_kinds import header, moment, pair, seconds, size, whole


async def _nothing(run: object) -> None: ...


COMMAND = Command(
    name="add",
    summary="Add a thing.",
    run=_nothing,
    arguments=(
        Argument(name="thing", help="Name of the thing"),
        Argument(name="more", help="More things", required=False, repeated=True),
    ),
    options=(
        Option(names=("--filter", "-f"), help="Subjects", repeated=True, commas=True),
        Option(names=("--ack",), help="Acknowledge", convert=bool, negatable=True),
        Option(names=("--quiet", "-q"), help="Say nothing", convert=bool),
        Option(names=("--force", "-y"), help="Ask nothing", convert=bool),
        Option(names=("--max-age",), help="Age", convert=seconds, env="MAX_AGE"),
        Option(names=("--max",), help="Number", convert=whole, default=7),
        Option(names=("--storage",), help="Storage", choices=("file", "memory")),
    ),
)


def parse(*words: str, **environment: str) -> CommandValues:
    return parse_command(COMMAND, list(words), [], environment)


def test_options_and_arguments_may_be_mixed() -> None:
    values = parse("-f", "a,b", "x", "--filter=c", "y", "-qy", "--max", "-1", "z")
    assert values.text("thing") == "x"
    assert values.texts("more") == ["y", "z"]
    assert values.texts("filter") == ["a", "b", "c"]
    assert values.flag("quiet") and values.flag("force")
    assert values.number("max") == -1


def test_a_flag_can_be_negated_and_a_missing_one_is_neither() -> None:
    assert parse("x").value("ack") is None
    assert parse("x", "--ack").value("ack") is True
    assert parse("x", "--no-ack").value("ack") is False
    assert parse("x", "--ack=false").value("ack") is False
    assert parse("x").value("quiet") is False


def test_letters_take_values_with_and_without_a_space() -> None:
    for words in (["-fa"], ["-f", "a"], ["-f=a"], ["-qfa"]):
        assert parse("x", *words).texts("filter") == ["a"]


def test_words_behind_two_dashes_are_no_options() -> None:
    values = parse("--", "-x", "--max", "1")
    assert (values.text("thing"), values.texts("more")) == ("-x", ["--max", "1"])


def test_negative_numbers_are_values() -> None:
    assert parse("-1").text("thing") == "-1"


def test_the_environment_stands_for_missing_options_only() -> None:
    assert parse("x", MAX_AGE="1h").seconds("max-age") == 3600
    assert parse("x", MAX_AGE="1h").given("max-age")
    assert parse("x", "--max-age", "2h", MAX_AGE="1h").seconds("max-age") == 7200
    assert not parse("x").given("max-age")
    with pytest.raises(UsageError, match=r"\$MAX_AGE: 'soon' is not a duration"):
        parse("x", MAX_AGE="soon")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "thing is missing: Name of the thing; see --help"),
        (["x", "--fliter", "a"], "unknown option --fliter; did you mean '--filter'?"),
        (["x", "--no-quiet"], "unknown option --no-quiet; did you mean '--quiet'?"),
        (["x", "-z"], "unknown option -z; see --help"),
        (["x", "--max"], "option --max needs a value: --max NUMBER"),
        (["x", "--max", "many"], "--max: 'many' is not a whole number"),
        (["x", "--quiet=maybe"], "option --quiet is true or false, not 'maybe'"),
        (["x", "--storage", "mem"], "--storage is 'mem'; it is one of file, memory"),
    ],
)
def test_what_can_not_be_is_said(words: list[str], text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(*words)
    assert str(raised.value).startswith(text)


def test_a_missing_argument_is_asked_for() -> None:
    values = parse_command(COMMAND, [], [], {}, ask=lambda argument: argument.name.upper())
    assert values.text("thing") == "THING"
    assert values.texts("more") == []


def test_groups_know_names_and_aliases_and_take_each_once() -> None:
    group = CommandGroup("g", "A group.")
    group.add(COMMAND)
    below = group.group("below", "More.", aliases=("b",))
    assert group.find("add") is COMMAND
    assert group.find("b") is below
    assert group.find("a") is None
    with pytest.raises(AssertionError, match="declared twice"):
        group.group("b", "Again.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("-1", -1),
        ("250ms", 0.25),
        ("1m30s", 90),
        ("1.5h", 5400),
        ("7d", 604_800),
        ("1y", 31_536_000),
    ],
)
def test_durations_have_units(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("512", 512), ("64K", 65_536), ("10MB", 10 << 20), ("1GiB", 1 << 30), ("1.5k", 1536), ("-1", -1)],
)
def test_sizes_have_units_of_1024(text: str, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (seconds, "5"),
        (seconds, ""),
        (seconds, "soon"),
        (size, "5X"),
        (whole, "1.5"),
        (header, "x"),
        (pair, "x"),
    ],
)
def test_values_that_can_not_be_are_refused_with_an_example(kind: object, text: str) -> None:
    with pytest.raises(ValueError, match=r"not|NAME|KEY"):
        kind(text)  # type: ignore[operator]


def test_a_time_may_be_absolute_or_from_now() -> None:
    assert moment("2026-11-23T15:20:34Z").isoformat() == "2026-11-23T15:20:34+00:00"
    assert (moment("1h") - moment("0")).total_seconds() == pytest.approx(3600, abs=5)
    assert moment("2026-11-23 15:20:34").tzinfo is not None


def test_suggestions_are_near_or_absent() -> None:
    known = ["consumer", "stream", "kv"]
    assert suggestion("steam", known) == "; did you mean 'stream'?"
    assert suggestion("cons", known) == "; did you mean 'consumer'?"
    assert suggestion("zzz", known) == ""

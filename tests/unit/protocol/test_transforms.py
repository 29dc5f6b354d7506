"""What a destination makes of a subject, and what it may not say."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.kernels.routing.grammar import fnv1a_32
from penstock.protocol.subjects import is_valid_subject
from penstock.protocol.transforms import (
    ARGUMENTS_MAX,
    DESTINATION_MAX,
    FUNCTIONS_MAX,
    NO_SUBJECT,
    RESULT_MAX,
    FirstMatch,
    SourceFilter,
    Transform,
)

pytestmark = pytest.mark.feature("core.subject-mapping", "stream.subject-transform")


def lowest(n: int) -> int:
    assert n >= 1
    return 0


def applied(source: str, destination: str, subject: str) -> str:
    transform = Transform(source, destination)
    assert transform.filter.matches(subject.encode())
    return transform.apply(subject.encode(), lowest).decode()


def refusal(source: str, destination: str, *, strict: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        Transform(source, destination, strict=strict)
    return caught.value.message.removeprefix("invalid mapping destination: ")


@pytest.mark.parametrize(
    ("source", "destination", "subject", "becomes"),
    [
        ("a", "b.c", "a", "b.c"),
        ("a.*", "b", "a.x", "b"),
        ("a.*.*", "b.$2.{{wildcard(1)}}", "a.x.y", "b.y.x"),
        ("*.b.*.d.>", "$2.$1.>", "a.b.c.d.e.f", "c.a.e.f"),
        ("a.>", "b.c.>", "a.x.y", "b.c.x.y"),
        ("", "b.>", "x.y", "b.x.y"),
        (">", ">", "x.y", "x.y"),
        ("a.*", "b.{{ wildcard( 1 ) }}", "a.x", "b.x"),
        ("a.*", "b.{{Wildcard(1)}}", "a.x", "b.x"),
        ("a.*", "b.$01.$+1", "a.x", "b.x.x"),
        ("a.*", "b.$x.$.$1x.$99999999999999999999", "a.x", "b.$x.$.$1x.$99999999999999999999"),
        ("a.*", "b.x{{wildcard(1)}}.{wildcard(1)}.{{}}", "a.x", "b.x{{wildcard(1)}}.{wildcard(1)}.{{}}"),
        ("a.*", "b.{{split(1,.)}}", "a.x", "b.{{split(1,.)}}"),
        ("a.*", "b.$0.{{left(-1,2)}}", "a.x", "b.a.a"),
        ("a.*", "b.*x.>x", "a.x", "b.*x.>x"),
    ],
)
def test_tokens_are_copied_moved_and_kept(source: str, destination: str, subject: str, becomes: str) -> None:
    assert applied(source, destination, subject) == becomes


@pytest.mark.parametrize(
    ("function", "token", "becomes"),
    [
        ("split(1,-)", "a-b--c", "a.b.c"),
        ("Split(1 , -)", "-ab-", "ab"),
        ("split(1,--)", "a-b--c", "a-b.c"),
        ("split(1,)", "aé", "a.é"),
        ("split(1, )", "abc", "a.b.c"),
        ("split(1,()", "a(b", "a.b"),
        ("split(1,-)", "--a", ".a"),
        ("split(1,-)", "--", ""),
        ("splitfromleft(1,2)", "abcdef", "ab.cdef"),
        ("splitFromRight(1,2)", "abcdef", "abcd.ef"),
        ("SplitFromLeft(1,6)", "abcdef", "abcdef"),
        ("splitfromright(1,0)", "abcdef", "abcdef"),
        ("splitfromleft(1,-1)", "abcdef", "abcdef"),
        ("slicefromleft(1,2)", "abcde", "ab.cd.e"),
        ("slicefromright(1,2)", "abcde", "a.bc.de"),
        ("sliceFromRight(1,2)", "abcd", "ab.cd"),
        ("slicefromleft(1,5)", "abcde", "abcde"),
        ("slicefromright(1,0)", "abcde", "abcde"),
        ("left(1,2)", "abc", "ab"),
        ("right(1,2)", "abc", "bc"),
        ("left(1,3)", "abc", "abc"),
        ("right(1,0)", "abc", "abc"),
    ],
)
def test_a_function_shapes_a_token(function: str, token: str, becomes: str) -> None:
    assert applied("a.*", f"{{{{{function}}}}}.end", f"a.{token}") == f"{becomes}.end"


# The numbers are the official server's.
@pytest.mark.parametrize(
    ("source", "function", "subject", "partition"),
    [
        ("s.*", "partition(10,1)", "s.abc", 1),
        ("s.*", "partition(10,1)", "s.abcdef", 6),
        ("s.*", "partition(3)", "s.abcdef", 2),
        ("s.*", "partition(-1,1)", "s.abc", 440920331),
        ("s.*", "partition(3,1,1)", "s.a-b--c", 2),
        ("s.*", "partition(10,-1)", "s.abc", 2),
        ("s.*", "partition(0,1)", "s.abc", 0),
        ("s", "partition(0)", "s", 0),
    ],
)
def test_a_partition_is_the_official_servers(
    source: str, function: str, subject: str, partition: int
) -> None:
    assert applied(source, f"{{{{{function}}}}}", subject) == str(partition)


def test_fnv1a_gives_its_published_test_vectors() -> None:
    assert fnv1a_32([b""]) == 0x811C9DC5
    assert fnv1a_32([b"a"]) == 0xE40C292C
    assert fnv1a_32([b"foobar"]) == 0xBF9CF968


def test_a_literal_source_is_partitioned_by_the_whole_subject_whatever_the_indexes() -> None:
    assert applied("a.b", "{{partition(100,7)}}", "a.b") == str(fnv1a_32([b"a.b"]) % 100)


def test_random_asks_for_numbers_below_its_size_and_says_that_it_does() -> None:
    asked: list[int] = []

    def below(n: int) -> int:
        asked.append(n)
        return n - 1

    transform = Transform("a", "b.{{random(7)}}.{{random(2147483647)}}")
    assert transform.is_random
    assert transform.apply(b"a", below) == b"b.6.2147483646"
    assert asked == [7, 2147483647]
    assert applied("a", "b.{{random(0)}}.{{random(-3)}}", "a") == "b.0.0"
    assert not Transform("a", "b.{{partition(7)}}").is_random


UNKNOWN = "unknown function"
RANGE = "wildcard index out of range"
TOO_FEW_ARGUMENTS = "not enough arguments passed to the function"
MANY = "too many arguments passed to the function"
BAD = "function argument is invalid or in the wrong format"


@pytest.mark.parametrize(
    ("source", "token", "text"),
    [
        ("a.*", "{{foo(1)}}", UNKNOWN),
        ("a.*", "{{wildcard}}", UNKNOWN),
        ("a.*", "{{ }}", UNKNOWN),
        ("a.*", "{{WILDCARD(1)}}", UNKNOWN),
        ("a.*", "{{wildCard(1)}}", UNKNOWN),
        ("a.*", "{{wildcard(1) x}}", UNKNOWN),
        ("a.*", "{{wildcard()}}", TOO_FEW_ARGUMENTS),
        ("a.*", "{{random(1,2)}}", TOO_FEW_ARGUMENTS),
        ("a.*", "{{split( )}}", TOO_FEW_ARGUMENTS),
        ("a.*", "{{left(1)}}", TOO_FEW_ARGUMENTS),
        ("a.*", "{{wildcard(1 , 2)}}", MANY),
        ("a.*", "{{split(1,-,)}}", MANY),
        ("a.*", "{{splitfromleft(1,1,1)}}", MANY),
        ("a.*", "{{wildcard(x)}}", BAD),
        ("a.*", "{{wildcard(1_0)}}", BAD),
        ("a.*", "{{wildcard(99999999999999999999)}}", BAD),
        ("a.*", "{{partition()}}", BAD),
        ("a.*", "{{partition(10,1,)}}", BAD),
        ("a.*", "{{partition(2147483648,1)}}", BAD),
        ("a.*", "{{random(2147483648)}}", BAD),
        ("a.*", "{{random()}}", BAD),
        ("a.*", "{{split(1,- )}}", BAD),
        ("a.*", "{{splitfromleft(1,2147483648)}}", BAD),
        ("a", "{{wildcard(1)}}", RANGE),
        ("a", "$1", RANGE),
        ("a", "{{split(1,-)}}", RANGE),
    ],
)
def test_a_function_that_can_not_be_is_refused_in_the_official_words(
    source: str, token: str, text: str
) -> None:
    assert refusal(source, f"b.{token}") == f"{text} in {token}"


@pytest.mark.parametrize("token", ["$2", "{{wildcard(2)}}", "{{partition(10,1,2)}}", "{{right(2,1)}}"])
def test_a_wildcard_the_source_does_not_have_is_named(token: str) -> None:
    assert refusal("a.*", f"b.{token}") == f"{RANGE} in {token}: [2]"


@pytest.mark.parametrize(
    ("source", "destination"),
    [("a.*", "b.*"), ("a.>", "b"), ("a", "b.>"), ("a..b", "c"), ("a b", "c"), ("a", "b.{{random(1)}}.*")],
)
def test_source_and_destination_must_be_subjects_that_fit(source: str, destination: str) -> None:
    assert refusal(source, destination) == "invalid subject"


@pytest.mark.parametrize("destination", ["", ".", "b.", ".b", "b..c", "c d", "b.{{x y", " ", "b\0"])
def test_a_destination_must_be_tokens(destination: str) -> None:
    assert refusal("a", destination) == "invalid transform"


def test_nothing_may_follow_the_tail() -> None:
    assert refusal("a.>", "b.>.c") == "invalid transform in c"


def test_a_strict_transform_uses_every_wildcard_and_no_other_function() -> None:
    assert Transform("a.*.*", "b.$2.{{wildcard(1)}}", strict=True).apply(b"a.x.y", lowest) == b"b.y.x"
    assert refusal("a.*.*", "b.$2", strict=True) == "not using all of the token wildcard(s) in b.$2"
    assert refusal("a.*", "b.{{split(1,-)}}", strict=True) == (
        "the only mapping function allowed for import transforms is {{Wildcard()}} in {{split(1,-)}}"
    )


@pytest.mark.parametrize(
    ("source", "subject", "matches"),
    [
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.*", "a.", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.>", "a.", True),
        ("a.>", "a..b", True),
        (">", "a", True),
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("*.b", "a.b", True),
    ],
)
def test_a_source_matches_what_the_official_one_matches(source: str, subject: str, matches: bool) -> None:
    assert (
        Transform(source, "x.>" if source.endswith(">") else "x").filter.matches(subject.encode()) is matches
    )


TOKENS = st.text(st.characters(codec="utf-8", exclude_characters=".*> \t\r\n\f\0"), min_size=1, max_size=8)
FUNCTIONS = st.one_of(
    st.builds("{{{{{}(1,{})}}}}".format, st.sampled_from(["left", "right"]), st.integers(-1, 9)),
    st.builds(
        "{{{{{}from{}(1,{})}}}}".format,
        st.sampled_from(["split", "slice"]),
        st.sampled_from(["left", "right"]),
        st.integers(-1, 9),
    ),
    st.builds("{{{{split(1,{})}}}}".format, st.sampled_from(["", "-", "ab", "é"])),
    st.builds("{{{{partition({},1)}}}}".format, st.integers(0, 20)),
    st.sampled_from(["$1", "{{wildcard(1)}}", "{{random(9)}}", "{{partition(9)}}", "lit", "$x"]),
)


@given(TOKENS, st.lists(TOKENS, min_size=1, max_size=3), st.lists(FUNCTIONS, min_size=1, max_size=4))
@example("x-", ["y"], ["{{split(1,-)}}"])
def test_a_valid_subject_becomes_a_valid_subject(token: str, tail: list[str], functions: list[str]) -> None:
    # The exception: what split makes of a delimiter alone and of two at the head, as the official server.
    if any(token.strip(d) == "" or token.startswith(d * 2) for d in ("-", "ab", "é")):
        return
    if token.replace("ab", "") == "":
        return
    transform = Transform("a.*.>", ".".join([*functions, ">"]))
    result = transform.apply(".".join(["a", token, *tail]).encode(), lowest)
    assert is_valid_subject(result.decode("utf-8", "surrogateescape")), result
    assert result.endswith(("." + ".".join(tail)).encode())


@given(st.lists(TOKENS, min_size=2, max_size=4), st.integers(1, 2**31 - 1))
def test_a_partition_is_in_its_range_and_stays(tokens: list[str], size: int) -> None:
    subject = ".".join(tokens).encode()
    stars = ".".join("*" * len(tokens))
    first = Transform(stars, f"{{{{partition({size},2,1)}}}}").apply(subject, lowest)
    again = Transform(stars, f"{{{{partition({size},2,1)}}}}").apply(subject, lowest)
    assert first == again
    assert 0 <= int(first) < size
    assert int(first) == fnv1a_32([(tokens[1] + tokens[0]).encode()]) % size
    unrelated = b".".join([*subject.split(b".")[:2], *[b"other"] * (len(tokens) - 2)])
    assert Transform(stars, f"{{{{partition({size},2,1)}}}}").apply(unrelated, lowest) == first


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_texts_are_a_transform_or_refused_with_a_reason(source: str, destination: str) -> None:
    try:
        assert Transform(source, destination).destination == destination
    except ConfigError as error:
        assert error.message  # noqa: PT017 - either outcome is right


@given(st.text("abAsplitwrdncfomghxR{}()1290,$. -*>", max_size=40))
def test_any_text_near_a_function_is_read_or_refused_with_a_reason(destination: str) -> None:
    try:
        transform = Transform("a.*.b.*", destination)
    except ConfigError as error:
        assert error.message  # noqa: PT017 - either outcome is right
    else:
        assert b" " not in transform.apply(b"a.x.b.y", lowest)


def test_a_destination_has_a_greatest_length_and_number_of_functions_and_arguments() -> None:
    assert Transform("a", "b" * DESTINATION_MAX)
    assert refusal("a", "b" * (DESTINATION_MAX + 1)) == f"it is longer than {DESTINATION_MAX} bytes"
    assert refusal("a", "ä" * (DESTINATION_MAX // 2 + 1)) == f"it is longer than {DESTINATION_MAX} bytes"
    assert Transform("a.*", "b" + ".$1" * FUNCTIONS_MAX)
    assert refusal("a.*", "b" + ".$1" * (FUNCTIONS_MAX + 1)) == f"it has more than {FUNCTIONS_MAX} functions"
    assert Transform("a.*", "{{partition(10%s)}}" % (",1" * (ARGUMENTS_MAX - 1)))
    token = "{{partition(10%s)}}" % (",1" * ARGUMENTS_MAX)
    assert refusal("a.*", token) == f"{MANY} in {token}"
    assert refusal("a.*", "{{partition(10%s)}}" % (",1" * 30_000)).startswith("it is longer")


SHAPES = ("x", "$1", "{{split(1,-)}}", "{{slicefromleft(1,1)}}", "{{partition(9,1)}}", "{{left(1,3)}}")


@given(
    token=st.text("ab-", min_size=1, max_size=9).map(lambda text: text * 70),
    shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=FUNCTIONS_MAX),
    has_tail=st.booleans(),
)
def test_a_result_is_whole_or_there_is_none(token: str, shapes: list[str], has_tail: bool) -> None:
    tail = ".>" if has_tail else ""
    rest = ".end." + token if has_tail else ""
    whole = ".".join([applied("s.*", shape, f"s.{token}") for shape in shapes]) + rest
    result = Transform("s.*" + tail, ".".join(shapes) + tail).apply(f"s.{token}{rest}".encode(), lowest)
    assert result == (whole.encode() if len(whole) <= RESULT_MAX else NO_SUBJECT)


def test_a_result_that_would_be_too_long_is_not_made() -> None:
    grown = Transform("a.*", ".".join(["{{split(1,)}}"] * FUNCTIONS_MAX))
    size = RESULT_MAX // (2 * FUNCTIONS_MAX)
    assert len(grown.apply(b"a." + b"x" * size, lowest)) == 2 * FUNCTIONS_MAX * size - 1
    assert grown.apply(b"a." + b"x" * (size + 1), lowest) == NO_SUBJECT
    asked: list[bytes] = []
    part = grown._parts[0]
    grown._parts = [lambda *args: asked.append(args[1]) or part(*args)] * FUNCTIONS_MAX  # type: ignore[func-returns-value]
    assert grown.apply(b"a." + b"x" * 4000, lowest) == NO_SUBJECT
    assert len(asked) == 1 + RESULT_MAX // 8000


def seconds(transform: Transform, subject: bytes) -> float:
    found = []
    for _ in range(3):
        start = time.process_time()
        for _ in range(20):
            transform.apply(subject, lowest)
        found.append(time.process_time() - start)
    return min(found)


def test_a_partition_of_many_tokens_costs_little_more_than_looking_at_them() -> None:
    """Hashed byte by byte in Python, it takes forty times as long."""
    token = b"x" * 4000
    subject = b"a." + token
    hashed = Transform("a.*", "{{partition(10%s)}}" % (",1" * (ARGUMENTS_MAX - 1)))
    split = Transform("a.*", "{{split(1,)}}")
    assert seconds(hashed, subject) < 10 * seconds(split, subject)


sources = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3).map(".".join)


@given(
    st.lists(sources | sources.map("{}.>".format) | st.just(">"), max_size=8),
    st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=4).map(".".join),
)
def test_the_first_filter_is_found_as_by_asking_one_after_the_other(drawn: list[str], subject: str) -> None:
    plain = [place for place, one in enumerate(drawn) if SourceFilter(one).matches(subject.encode())]
    assert FirstMatch(drawn).find(subject.encode()) == (plain[0] if plain else None)

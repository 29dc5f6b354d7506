"""All errors of a configuration file at once, and what was meant by an unknown field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.server.config.conf_parser import parse
from penstock.server.config.config_errors import ConfigErrors
from penstock.server.config.directives import options_of

BLOCKS = """\
prot: 4222
max_payload: lots
authorization {
  usr: a
  timeout: soon
  users: [ {user: a, pasword: b}, {password: c} ]
}
jetstream { store_dr: /x, max_file: 1 }
gateway { name: A, gatways: [], gateways: [ {nam: B}, {name: C, url: "::"} ] }
cluster { port: 1, route: [] }
leafnodes { remotes: [ {urls: 1}, {acount: A} ] }
accounts { A: { user: 1 }, B: { limits: {max_con: 1} } }
"""
EXPECTED = """\
1:1: unknown field "prot"; did you mean "port"?
2:14: max_payload is 'lots'; it must be an integer
4:3: unknown field "usr"; did you mean "user"?
5:12: error parsing timeout: 'soon' is no duration
6:22: unknown field "pasword"; did you mean "password"?
6:35: a user has no name: give it `user: ...`
8:13: unknown field "store_dr"; did you mean "store_dir"?
9:20: unknown field "gatways"; did you mean "gateways"?
9:46: unknown field "nam"; did you mean "name"?
9:70: error parsing gateway url
10:20: unknown field "route"; did you mean "routes"?
11:31: urls is 1; it must be
11:36: unknown field "acount"; did you mean "account"?
12:17: unknown field "user"; did you mean "users"?
12:42: unknown field "max_con"; did you mean "max_conn"?
"""


def errors_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        options_of(parse(text, "t.conf"))
    return str(caught.value).splitlines()


def test_every_error_of_every_block_is_named_with_its_place() -> None:
    found = errors_of(BLOCKS)
    wanted = [f"t.conf:{line}" for line in EXPECTED.splitlines()]
    for line, start in zip(found, wanted, strict=True):
        assert line.startswith(start)


def test_the_place_of_several_errors_is_that_of_the_first() -> None:
    with pytest.raises(ConfigErrors) as caught:
        options_of(parse("debug: 1\ntrace: 2", "t.conf"))
    assert (caught.value.line, len(caught.value.errors)) == (1, 2)


@pytest.mark.parametrize(("line", "block"), [
    ("users: []", "authorization"), ("token: x", "authorization"), ("max_mem: 1G", "jetstream"),
])  # fmt: skip
def test_the_error_about_a_field_outside_of_its_block_names_the_block(line: str, block: str) -> None:
    name = line.partition(":")[0]
    assert errors_of(line) == [f't.conf:1:1: unknown field "{name}"; it belongs in the block "{block}"']


def test_what_resembles_nothing_gets_no_suggestion() -> None:
    assert errors_of("colour: 1") == ['t.conf:1:1: unknown field "colour"']


def test_values_out_of_bounds_are_all_named() -> None:
    found = errors_of("port: 70000\nmax_payload: -1\nserver_name: 'two words'\nhttp_port: 8222\nping_max: -3")
    assert [line.split(":")[1] for line in found] == sorted(line.split(":")[1] for line in found)
    assert len(found) >= 3
    assert any("port" in line and line.startswith("t.conf:1:1:") for line in found)


def test_an_error_that_another_one_causes_is_left_out() -> None:
    """`a` would be no user only because its own entry can not be read."""
    found = errors_of("no_auth_user: a\nauthorization { users: [ {user: a, pasword: b} ] }")
    assert found == ['t.conf:2:36: unknown field "pasword"; did you mean "password"?']


@given(st.sets(st.sampled_from(["port: 70000", "max_payload: -1", "ping_max: many", "prot: 1", "debug: 7"])))
def test_each_wrong_line_is_reported_once_whatever_else_is_wrong(lines: set[str]) -> None:
    """Values that can not be read come first: without them, the options as a whole are not checked."""
    text = "\n".join(sorted(lines))
    unreadable = {line for line in lines if not line.endswith(("70000", "-1"))}
    if not lines:
        options_of(parse(text, "t.conf"))
        return
    found = errors_of(text)
    assert len(found) == len(set(found)) == len(unreadable or lines)

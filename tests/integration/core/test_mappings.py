"""Mappings through a server: the same nats.conf makes the same subjects on ours and on the official one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.server.config.directives import load
from tests.support.conf_servers import official_verdict, official_with
from tests.support.nats_servers import KINDS, OfficialServer, PenstockServer
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("core.subject-mapping")

FUNCTIONS = [
    "wildcard(1)",
    "partition(10,1)",
    "partition(7,2)",
    "partition(1000003,2,1)",
    "partition(2147483647,1,2)",
    "partition(-1,1,2)",
    "partition(5)",
    "partition(0)",
    "partition(9,0)",
    "random(1)",
    "split(1,-)",
    "split(2,ab)",
    "split(1,)",
    "splitfromleft(1,2)",
    "splitfromright(2,3)",
    "slicefromleft(1,2)",
    "slicefromright(1,2)",
    "slicefromright(2,3)",
    "left(1,3)",
    "right(2,1)",
    "splitfromleft(1,-1)",
    "left(0,1)",
]

CONF = """
mappings {
    orders.*.*: "sorted.{{wildcard(2)}}.$1"
    w.>: "v.>"
    v.>: "u.>"
    prefixed: "deep.er.prefixed"
    half: { destination: other, weight: 50% }
    canary: [ { destination: stable, weight: 98 }, { destination: new, weight: 2 } ]
    lossy: [ { destination: lossy, weight: 30 }, { destination: kept, weight: 20 } ]
    elsewhere: { destination: far, weight: 100, cluster: east }
    dice: "dice.{{random(3)}}"
    whole: "whole.{{partition(11)}}"
    request: "mapped.request"
    internal: "$NRG.x"
"""


@contextmanager
def running(kind: str, conf: str, directory: Path) -> Iterator[int]:
    """The port of a server with this configuration."""
    path = directory / "nats.conf"
    path.write_text(conf, encoding="utf-8")
    server: OfficialServer | PenstockServer
    if kind == "official":
        server = official_with(path)
    else:
        server = PenstockServer(directory, {"mappings": load(str(path)).mappings})
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


@pytest.fixture(scope="module", params=KINDS)
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running(request.param, CONF + "}", tmp_path_factory.mktemp(request.param)) as port:
        yield port


def mapped(port: int, subjects: list[str]) -> list[tuple[str, str]]:
    """(subject published to, subject received at) of all that reached a subscription to everything."""
    client = RawNats(port)
    client.subscribe(">", 1)
    for i, subject in enumerate(subjects):
        client.publish(subject, b"%d" % i)
    client.publish("END")
    found = []
    while (message := client.message()).subject != b"END":
        found.append((subjects[int(message.payload)], message.subject.decode()))
    client.close()
    return found


def mapped_by_both(conf: str, subjects: list[str], directory: Path) -> list[tuple[str, str]]:
    """What both servers, each with this configuration, make of the subjects: the same."""
    found = {}
    for kind in ("official", "penstock"):
        (directory / kind).mkdir()
        with running(kind, conf, directory / kind) as port:
            found[kind] = mapped(port, subjects)
    assert found["penstock"] == found["official"]
    return found["penstock"]


def test_a_prefix_is_put_before_a_subject_and_tokens_change_places(port: int) -> None:
    assert mapped(port, ["prefixed", "orders.eu.7", "orders.eu", "orders.a.b.c"]) == [
        ("prefixed", "deep.er.prefixed"),
        ("orders.eu.7", "sorted.7.eu"),
        ("orders.eu", "orders.eu"),
        ("orders.a.b.c", "orders.a.b.c"),
    ]


def test_a_mapping_is_not_applied_to_the_output_of_another(port: int) -> None:
    assert mapped(port, ["w.a.b", "v.a.b"]) == [("w.a.b", "v.a.b"), ("v.a.b", "u.a.b")]


def test_weights_share_messages_out(port: int) -> None:
    count = 10_000
    found = Counter(subject for _, subject in mapped(port, ["half", "canary"] * count))
    # Five standard deviations: one run in a million is off.
    assert found["half"] + found["other"] == count
    assert abs(found["other"] - 0.5 * count) < 5 * (count * 0.25) ** 0.5
    assert found["stable"] + found["new"] == count
    assert abs(found["new"] - 0.02 * count) < 5 * (count * 0.02 * 0.98) ** 0.5


def test_what_weights_leave_is_dropped_where_the_source_is_listed(port: int) -> None:
    count = 10_000
    found = Counter(subject for _, subject in mapped(port, ["lossy"] * count))
    assert set(found) == {"lossy", "kept"}
    assert abs(found["lossy"] - 0.3 * count) < 5 * (count * 0.21) ** 0.5
    assert abs(found["kept"] - 0.2 * count) < 5 * (count * 0.16) ** 0.5


def test_destinations_of_another_cluster_count_for_nothing(port: int) -> None:
    assert mapped(port, ["elsewhere"]) == [("elsewhere", "elsewhere")]


def test_random_spreads_over_its_numbers(port: int) -> None:
    assert {subject for _, subject in mapped(port, ["dice"] * 200)} == {"dice.0", "dice.1", "dice.2"}


def test_no_responders_names_the_mapped_subject(port: int) -> None:
    client = RawNats(port)
    client.subscribe("inbox", 1)
    client.publish("request", reply="inbox")
    assert client.message().header == b"NATS/1.0 503\r\nNats-Subject: mapped.request\r\n\r\n"
    client.close()


def test_a_mapping_can_not_reach_what_clients_may_not_publish_to(port: int) -> None:
    client = RawNats(port)
    client.publish("internal")
    assert client.line() == b"-ERR 'Permissions Violation for Publish to \"$NRG.x\"'"
    client.close()


def test_every_function_makes_what_the_official_server_makes(tmp_path: Path) -> None:
    maps = "".join(f'    f{i}.*.*: "f{i}.{{{{{name}}}}}.end"\n' for i, name in enumerate(FUNCTIONS))
    maps += '    tail.*.>: "tail.{{partition(100,1)}}.$1.>"\n    whole: "whole.{{partition(11)}}"\n'
    chance = random.Random(20)
    words = ["a", "-", "--", "--a", "a-b--c-", "ab", "xabyab", "é", "abcdefghij", "*", ">x", "{{left(1,1)}}"]
    words += ["".join(chance.choices("abcdefg-0123", k=chance.randint(1, 12))) for _ in range(40)]
    subjects = [f"f{i}.{w}.{chance.choice(words)}" for i in range(len(FUNCTIONS)) for w in words]
    subjects += [f"tail.{w}.{w}.x" for w in words] + ["whole", "tail.x", "f0.a", "tail.a.b..c"]
    conf = "mappings {\n" + maps + "}\n"
    found = mapped_by_both(conf, subjects, tmp_path)
    assert len(found) > len(subjects) // 2


def test_partitions_of_many_keys_are_the_official_servers(tmp_path: Path) -> None:
    conf = 'mappings { "k.*.*": "p.{{partition(16,1,2)}}.{{partition(997,2)}}.$1.$2" }'
    subjects = [f"k.customer-{i * 7919 % 10007}.{i:x}" for i in range(3000)]
    found = mapped_by_both(conf, subjects, tmp_path)
    assert len({subject.split(".")[1] for _, subject in found}) == 16


@pytest.mark.official
@pytest.mark.parametrize(
    "entry",
    [
        'a.*: "b.{{wildcard(2)}}"',
        'a.*: "b.$1.$3"',
        'a: "b.$1"',
        'a.*: "b.{{wildcard()}}"',
        'a.*: "b.{{split(1,- )}}"',
        'a.*: "b.{{random(1,2)}}"',
        'a.*: "b.{{foo(1)}}"',
        'a.*: "b.>.c"',
        'a.*: "b.*"',
        'a: "b..c"',
        "a..b: c",
        "a: [{dest: b, weight: 50}, {dest: c, weight: 60}]",
        "a: [{dest: b, weight: 50}, {dest: b, weight: 10}]",
        "a: {dest: b, weight: '101%'}",
        "a: {dest: b, weight: 'x%'}",
        "a: {dest: b}",
        "a: [b]",
        "a: {dest: b, weight: 1, foo: x}",
    ],
)
def test_what_is_refused_is_refused_in_the_official_words(entry: str, tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    path.write_text(f"mappings {{\n{entry}\n}}\n", encoding="utf-8")
    official = official_verdict(path).strip()
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    assert official.endswith(f": {caught.value.message}")
    assert caught.value.line == 2

"""What may pass a leaf node link: permissions, deny lists, and JetStream's subjects between domains."""

from __future__ import annotations

import pytest

from penstock.cluster.domains import CLIENT_SUBJECTS, SYSTEM_SUBJECTS, Denied, denied
from penstock.cluster.leaf_info import LeafInfo
from penstock.cluster.leaf_link import is_version_at_least
from penstock.cluster.leaf_ports import leaf_address_of
from penstock.cluster.leaf_remote import LeafRemote
from penstock.cluster.leaf_rules import permission_of, rules_of_hub, rules_of_leaf, shown_permission
from penstock.errors import ConfigError, ProtocolError
from penstock.routing.permissions import PermissionEntry, Permissions, SubjectPermission
from penstock.server.config.leaf_options import LeafOptions, LeafRemoteOptions


def entries(*filters: str) -> tuple[PermissionEntry, ...]:
    return tuple(PermissionEntry(one) for one in filters)


USER = Permissions(
    publish=SubjectPermission(allow=entries("up.>"), deny=entries("up.no")),
    subscribe=SubjectPermission(allow=entries("down.>"), deny=entries("down.no")),
)


def test_a_hub_enforces_its_user_the_other_way_round() -> None:
    rules = rules_of_hub(USER, ("down.unwanted",), ("$JS.API.>",))
    assert rules.may_send is not None
    assert [rules.may_send(one) for one in (b"down.x", b"down.no", b"down.unwanted", b"up.x")] == [
        *(True, False, False, False)
    ]
    assert rules.may_announce is not None
    assert [rules.may_announce(one) for one in (b"up.x", b"up.no", b">", b"*", b"$LDS.x")] == [
        *(True, False, True, False, True)
    ]
    assert rules.may_take is not None
    assert [rules.may_take(one) for one in (b"up.x", b"up.no", b"down.x", b"_R_.a", b"$JS.ACK.S")] == [
        *(True, False, False, True, True)
    ]
    assert rules.may_accept is not None
    assert [rules.may_accept(one) for one in (b"down.x", b"up.x", b">", b"$LDS.x")] == [
        *(True, False, True, True)
    ]


def test_a_leaf_node_enforces_what_the_hub_told_and_its_own_lists() -> None:
    imports, exports = shown_permission(USER.subscribe), shown_permission(USER.publish)
    rules = rules_of_leaf(
        imports,
        exports,
        deny_imports=("down.mine",),
        deny_exports=("up.mine",),
        denied_out=("$JS.own.API.>",),
        denied_both=(),
    )
    assert rules.may_send is not None
    assert [rules.may_send(one) for one in (b"up.x", b"up.no", b"up.mine")] == [True, False, False]
    assert rules.may_take is not None
    assert [rules.may_take(one) for one in (b"down.x", b"down.no", b"down.mine")] == [True, False, False]


def test_without_permissions_nothing_is_checked() -> None:
    for rules in (
        rules_of_hub(None, (), ()),
        rules_of_leaf(None, None, deny_imports=(), deny_exports=(), denied_out=(), denied_both=()),
    ):
        assert (rules.may_send, rules.may_announce, rules.may_take, rules.may_accept) == (None,) * 4


@pytest.mark.parametrize("shown", [5, "x", {"allow": 3}, {"allow": [1]}, {"deny": ["a b c"]}])
def test_unreadable_permissions_of_a_hub_are_its_fault(shown: object) -> None:
    with pytest.raises(ProtocolError):
        permission_of(shown)


def test_permissions_travel_in_info() -> None:
    for permission in (USER.publish, SubjectPermission(allow=()), SubjectPermission(deny=entries("a"))):
        assert permission_of(shown_permission(permission)) == permission
    assert shown_permission(SubjectPermission()) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"domain": "a", "remote_domain": "b"}, Denied(CLIENT_SUBJECTS, ("$JS.a.API.>",))),
        ({"domain": "a", "remote_domain": "a"}, Denied(CLIENT_SUBJECTS)),
        ({}, Denied(CLIENT_SUBJECTS)),
        ({"has_jetstream": False}, Denied(CLIENT_SUBJECTS)),
        ({"has_jetstream": False, "hint": "will_extend", "account": "$SYS"}, Denied()),
        ({"account": "$SYS"}, Denied()),
        ({"account": "$SYS", "remote_domain": "b"}, Denied(SYSTEM_SUBJECTS)),
        ({"account": "$SYS", "defaults": {"A": ""}}, Denied(SYSTEM_SUBJECTS)),
        ({"defaults": {"A": ""}}, Denied()),
        ({"defaults": {"A": "x"}}, Denied(CLIENT_SUBJECTS)),
        ({"system_account": ""}, Denied(CLIENT_SUBJECTS)),
    ],
)
def test_jetstream_stays_on_its_side(given: dict[str, object], expected: Denied) -> None:
    settings = {
        "account": "A",
        "system_account": "$SYS",
        "domain": "",
        "remote_domain": "",
        "has_jetstream": True,
        "hint": "",
        "defaults": {},
        **given,
    }
    assert denied(**settings) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "wanted", "expected"),
    [
        ("2.10.0", "2.10.0", True),
        ("v2.11.1-beta.2", "2.11.0", True),
        ("2.9.25", "2.10.0", False),
        ("", "2.8.0", False),
        ("x.y.z", "2.8.0", False),
    ],
)
def test_versions_are_compared_by_number(version: str, wanted: str, expected: bool) -> None:
    assert is_version_at_least(version, wanted) is expected


def test_a_remote_tries_its_addresses_in_turn_and_those_that_the_hub_tells_first() -> None:
    options = LeafRemoteOptions(urls=("leaf://u:p@one", "leaf://two:1"), no_randomize=True)
    remote = LeafRemote(options, lambda: 0.0)
    assert [str(remote.next_address()) for _ in range(3)] == ["one:7422", "two:1", "one:7422"]
    remote.note_servers(LeafInfo(server_id="H", leafnode_urls=["10.0.0.1:7", "TWO:1", "[::1]:8"]))
    assert [str(remote.next_address()) for _ in range(4)] == ["10.0.0.1:7", "[::1]:8", "one:7422", "two:1"]
    remote.next_address()
    assert (remote.user, remote.host_name) == (("u", "p"), "one")
    for url in ("nonsense", "h:", ":1", "h:65536", "h:²", "h:" + "1" * 4301):
        with pytest.raises(ConfigError, match="Error parsing url"):
            remote.note_servers(LeafInfo(server_id="H", leafnode_urls=[url]))


@pytest.mark.parametrize("url", ["", "leaf://", "leaf://h:x", "leaf://:1"])
def test_addresses_without_a_host_or_port_number_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="error parsing leafnode url"):
        leaf_address_of(url)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LeafRemoteOptions(urls=()), "has no URL"),
        (lambda: LeafRemoteOptions(urls=("leaf://h",), credentials="c", nkey="n"), "both creds and nkey"),
        (lambda: LeafRemoteOptions(urls=("wss://h", "leaf://h")), "a mix of websocket and non-websocket"),
        (
            lambda: LeafOptions(remotes=(LeafRemoteOptions(urls=("leaf://u:secret@h",)),) * 2),
            r"duplicate remote leaf://u@h:7422$",
        ),
        (lambda: LeafOptions(min_version="2.7.0"), "at least 2.8.0"),
        (lambda: LeafOptions(min_version="x"), "invalid leafnode's minimum version"),
        (lambda: LeafOptions(port=70000), "leafnodes.port is 70000"),
    ],
)
def test_options_are_checked(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]

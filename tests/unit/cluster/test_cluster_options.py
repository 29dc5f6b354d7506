"""The block `cluster` of nats.conf: values, defaults, and errors with their places."""

from __future__ import annotations

import pytest

from penstock.cluster.announcements import pool_index
from penstock.cluster.mesh_ports import address_of
from penstock.cluster.peer_link import Address
from penstock.errors import ConfigError
from penstock.routing.permissions import PermissionEntry, Permissions, SubjectPermission
from penstock.server.config import conf_parser
from penstock.server.config.directives import options_of
from penstock.server.config.server_options import ClusterOptions, ServerOptions
from penstock.server.links.route_settings import settings_of

pytestmark = pytest.mark.feature("cluster.routes")


def options(text: str) -> ServerOptions:
    return options_of(conf_parser.parse(text, "t.conf"))


def test_every_directive_is_read() -> None:
    found = options("""
        server_name: one
        cluster {
            name: blue, host: "127.0.0.1", port: 6222
            routes: ["nats-route://u:p@a:1", "b:2"]
            authorization { user: u, password: p, timeout: 0.5 }
            advertise: "h:9", no_advertise: true
            connect_retries: 3, connect_backoff: true
            permissions { import: "a.>", export: { allow: ["b", "c"], deny: "d" } }
            pool_size: 5, accounts: [A, B]
            compression: { mode: s2_auto, rtt_thresholds: [10ms, "20ms"] }
            ping_interval: "20s", ping_max: 3, write_deadline: "4s", write_timeout: close
        }
    """)
    assert found.cluster_name == "blue"
    assert found.cluster == ClusterOptions(
        host="127.0.0.1",
        port=6222,
        routes=("nats-route://u:p@a:1", "b:2"),
        user="u",
        password="p",
        auth_timeout_ns=500_000_000,
        advertise="h:9",
        no_advertise=True,
        connect_retries=3,
        connect_backoff=True,
        permissions=Permissions(
            publish=SubjectPermission(allow=(PermissionEntry("a.>"),)),
            subscribe=SubjectPermission(
                allow=(PermissionEntry("b"), PermissionEntry("c")), deny=(PermissionEntry("d"),)
            ),
        ),
        pool_size=5,
        accounts=("A", "B"),
        compression="s2_auto",
        rtt_thresholds_ns=(10_000_000, 20_000_000),
        ping_interval_ns=20_000_000_000,
        ping_max=3,
        write_deadline_ns=4_000_000_000,
        write_timeout="close",
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "cluster { name: 'a b', port: 1 }",
            "t.conf:1:1: cluster.name is 'a b': cluster name cannot contain spaces",
        ),
        ("cluster { name: _, port: 1 }", "cluster name is reserved"),
        (
            "cluster { port: 1, routes: 'nats://h:1' }",
            "t.conf:1:28: routes is 'nats://h:1'; it must be an array",
        ),
        ("cluster { port: 1, routes: ['nats://h'] }", 't.conf:1:29: error parsing routes url "nats://h"'),
        (
            "cluster { port: 1, authorization { users: [] } }",
            "Cluster authorization does not allow multiple users",
        ),
        ("cluster { port: 1, authorization { token: x } }", "Cluster authorization does not support tokens"),
        (
            "cluster { port: 1, authorization { auth_callout: {} } }",
            "Cluster authorization does not support callouts",
        ),
        (
            "cluster { port: 1, permissions { allow_responses: true } }",
            "Cluster permissions do not support dynamic responses",
        ),
        (
            "cluster { port: 1, accounts: [A, B, A] }",
            'found duplicate account name "A" in pinned accounts list [A B A]',
        ),
        (
            "cluster { port: 1, pool_size: -1, accounts: [A] }",
            "pool_size cannot be negative if pinned accounts are specified",
        ),
        ("cluster { port: 1, compression: zip }", 'unsupported compression mode "zip"'),
        (
            "cluster { port: 1, compression: s2_uncompressed }",
            'unsupported compression mode "s2_uncompressed"',
        ),
        (
            "cluster { port: 1, compression: {mode: s2_auto, rtt_thresholds: [20ms, 10ms]} }",
            "RTT threshold values [20ms 10ms] should be in ascending order",
        ),
        (
            "cluster { port: 1, compression: {mode: s2_auto, rtt_thresholds: [1ms,2ms,3ms,4ms,5ms]} }",
            'compression mode "s2_auto" should have no more than 4 RTT thresholds',
        ),
        ("cluster { port: 70000 }", "cluster.port is 70000; it must be from -1 to 65535"),
        ("cluster { port: 1, foo: 1 }", 'unknown field "foo"'),
        ("jetstream: true, cluster { port: 1 }", "jetstream cluster requires `server_name` to be set"),
        (
            "server_name: a, jetstream: true, cluster { port: 1 }",
            "jetstream cluster requires `cluster.name` to be set",
        ),
        (
            "server_name: a, jetstream: true, cluster { port: 1, name: c }",
            "jetstream cluster requires `jetstream.store_dir` to be set",
        ),
        ("cluster { routes: ['nats://h:1'] }", "cluster.routes needs cluster.port or cluster.listen"),
    ],
)
def test_what_is_wrong_is_refused(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options(text)
    assert error in str(caught.value)


def test_the_system_account_is_always_pinned_unless_there_is_no_pool() -> None:
    assert settings_of(options("cluster { port: 1, accounts: [A] }")).pinned_accounts == ("A", "$SYS")
    assert settings_of(options("cluster { port: 1, pool_size: -1 }")).pinned_accounts == ()
    assert settings_of(options("no_system_account: true, cluster { port: 1 }")).pinned_accounts == ()
    assert settings_of(options("cluster { port: 1, pool_size: 0 }")).pool_size == 3


@pytest.mark.parametrize(
    ("text", "mode"),
    [("true", "s2_fast"), ("false", "off"), ("auto", "s2_auto"), ("'not supported'", "not supported")],
)
def test_names_of_compression_modes(text: str, mode: str) -> None:
    found = options(f"cluster {{ port: 1, compression: {text} }}").cluster
    assert found is not None
    assert found.compression == mode


def test_addresses_of_routes() -> None:
    assert address_of("nats://h:1") == Address("h", 1)
    assert address_of("tls://u%40:p%3A@[::1]:2") == Address("::1", 2, "u@", "p:")
    assert str(address_of("[::1]:2")) == "[::1]:2"


@pytest.mark.parametrize(("account", "index"), [("$G", 2), ("A", 0), ("B", 0), ("ACME", 1)])
def test_accounts_have_the_places_of_the_official_server(account: str, index: int) -> None:
    """FNV-1a of the name, modulo the pool's size: peers look for an account's interest there."""
    assert pool_index(account, 3) == index
    assert pool_index(account, 1) == pool_index(account, -1) == 0

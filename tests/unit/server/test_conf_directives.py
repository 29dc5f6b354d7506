"""What directives mean, and which are refused."""

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.server.config.conf_parser import parse
from penstock.server.config.directives import load, options_of
from penstock.server.config.server_options import JetStreamOptions, ServerOptions, User

pytestmark = pytest.mark.feature("operations.configuration")


def options(text: str) -> ServerOptions:
    return options_of(parse(text, "t.conf", environ={}))


def test_no_directives_give_the_defaults() -> None:
    assert options("") == ServerOptions()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            """
            listen: "127.0.0.1:4333"
            server_name: one
            http: "localhost:8333"
            pid_file: "x.pid"
            ports_file_dir: "/ports"
            lame_duck_duration: "1m"
            lame_duck_grace_period: "5s"
            cluster { name: blue, no_advertise: true }
            gateway {}; leafnodes {}; mqtt {}
            prof_port: 0
            """,
            ServerOptions(
                host="127.0.0.1",
                port=4333,
                server_name="one",
                http_host="localhost",
                http_port=8333,
                pid_file="x.pid",
                ports_file_dir="/ports",
                lame_duck_duration_ns=60_000_000_000,
                lame_duck_grace_period_ns=5_000_000_000,
                cluster_name="blue",
            ),
            id="server",
        ),
        pytest.param(
            """
            max_payload: 2MB
            max_connections: 7
            max_control_line: 8KB
            max_pending: 32MB
            max_subscriptions: 9
            ping_interval: "30s"
            ping_max: 3
            write_deadline: "2s"
            no_fast_producer_stall: true
            """,
            ServerOptions(
                max_payload=2 * 1024 * 1024,
                max_connections=7,
                max_control_line=8192,
                max_pending=32 * 1024 * 1024,
                max_subscriptions=9,
                ping_interval_ns=30_000_000_000,
                ping_max=3,
                write_deadline_ns=2_000_000_000,
                fast_producer_stall=False,
            ),
            id="connections",
        ),
        pytest.param(
            """
            debug: true
            trace: true
            trace_verbose: true
            trace_headers: true
            max_traced_msg_len: 77
            logtime: false
            log_file: "x.log"
            logfile_size_limit: 1MB
            logfile_max_num: 3
            log_format: json
            syslog: true
            remote_syslog: "udp://localhost:514"
            """,
            ServerOptions(
                debug=True,
                trace=True,
                trace_verbose=True,
                trace_headers=True,
                max_traced_msg_len=77,
                logtime=False,
                log_file="x.log",
                log_size_limit=1024 * 1024,
                logfile_max_num=3,
                log_format="json",
                syslog=True,
                remote_syslog="udp://localhost:514",
            ),
            id="logs",
        ),
        pytest.param(
            """
            no_auth_user: a
            authorization { timeout: 0.5, users: [ {user: a, password: b}, {user: c, password: d} ] }
            """,
            ServerOptions(
                no_auth_user="a",
                users=(User(name="a", password="b"), User(name="c", password="d")),
                auth_timeout_ns=500_000_000,
            ),
            id="authorization",
        ),
        pytest.param(
            """
            jetstream {
                store_dir: "/data", max_memory_store: 1G, max_file_store: "2G"
                domain: hub, sync_interval: "10s"
            }
            """,
            ServerOptions(
                jetstream=JetStreamOptions(
                    store_dir="/data",
                    max_memory_bytes=1_000_000_000,
                    max_file_bytes=2 * 1024**3,
                    domain="hub",
                    sync_interval_ns=10_000_000_000,
                    sync_replicas=False,
                ),
            ),
            id="jetstream",
        ),
    ],
)
def test_every_supported_directive_sets_its_option(text: str, expected: ServerOptions) -> None:
    assert options(text) == expected


def test_keys_are_case_insensitive() -> None:
    assert options("PORT: 1\nMax_Payload: 5").port == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("jetstream: true", JetStreamOptions()),
        ("jetstream: enabled", JetStreamOptions()),
        ("jetstream {}", JetStreamOptions()),
        ("jetstream: false", None),
        ("jetstream: disabled", None),
        ("jetstream { enabled: false, store_dir: x }", None),
        ("jetstream { sync_interval: always }", JetStreamOptions(sync_always=True)),
        ("jetstream { fast_ingest_errors: official }", JetStreamOptions(official_fast_errors=True)),
        ("jetstream { fast_ingest_errors: adr }", JetStreamOptions()),
        (
            (
                "jetstream { limits { batch { max_inflight_per_stream: 2, max_inflight_total: 3, max_msgs: 4,"
                " max_bytes: 64MB, timeout: 5 } } }"
            ),
            JetStreamOptions(
                batch_inflight_per_stream_max=2,
                batch_inflight_total_max=3,
                batch_messages_max=4,
                batch_bytes_max=64 * 1024 * 1024,
                batch_timeout_ns=5_000_000_000,
            ),
        ),
    ],
)
def test_jetstream_is_a_block_a_boolean_or_a_word(text: str, expected: JetStreamOptions | None) -> None:
    assert options(text).jetstream == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port: 1\nfoo: bar", 't.conf:2:1: unknown field "foo"'),
        ("authorization {\n usr: b\n}", 't.conf:2:2: unknown field "usr"'),
        ("jetstream {\n store_dr: b\n}", 't.conf:2:2: unknown field "store_dr"'),
        ("authorization { users: [ {user: a, zzz: 1} ] }", 't.conf:1:36: unknown field "zzz"'),
        ("users: 1", 't.conf:1:1: unknown field "users"'),
        ("gateway { port: 1 }", "t.conf:1:9: gateway has no name"),
        ("gateway { name: A }", 't.conf:1:9: gateway "A" has no port specified (select -1 for random port)'),
        (
            "gateway { name: A, port: 1, gateways: [{url: 'nats://h:1'}] }",
            "gateway in the list 0 has no name",
        ),
        ("gateway { name: A, port: 1, gateways: [{name: B}] }", 'gateway "B" has no URL'),
        ("gateway { gateways: [{name: B, url: '::'}] }", "error parsing gateway url"),
        ("gateway { authorization { token: t } }", "Gateway authorization does not support tokens"),
        ("gateway { authorization { users: [] } }", "Gateway authorization does not allow multiple users"),
        (
            "cluster { name: C, port: 1 }\ngateway { name: A, port: 1 }",
            "cluster name conflicts between cluster and gateway definitions",
        ),
        ("jetstream: true, gateway { name: A, port: 1 }", "jetstream and gateway exclude each other"),
        (
            "cluster { name: x\n routes: [nats://h:1] }",
            "t.conf:1:9: cluster.routes needs cluster.port or cluster.listen",
        ),
        ("cluster { routes: ['::'] }", "t.conf:1:20: error parsing routes url"),
        ("cluster { colour: x }", 't.conf:1:11: unknown field "colour"'),
        ("cluster { pool_size: x }", "t.conf:1:22: pool_size is 'x'; it must be an integer"),
        ("cluster { compression: x }", 't.conf:1:24: unsupported compression mode "x"'),
        ("gateway { gateways: [ {nam: B} ] }", 't.conf:1:24: unknown field "nam"'),
        ("leafnodes { remotes: [ {url: 'nats://h:1', colour: 1} ] }", 't.conf:1:44: unknown field "colour"'),
        ("leaf { remotes: [ {account: A} ] }", "t.conf:1:19: a leafnode remote has no URL"),
        (
            "leaf { remotes: [ {url: 'nats://h', proxy { url: 'ftp://p' }} ] }",
            "proxy URL scheme must be http or https, got: ftp",
        ),
        ("leaf { remotes: [ {url: 'nats://h', proxy { url: 'https://p' }} ] }", "give it an http URL"),
        ("leaf { remotes: [ {url: 'nats://h', proxy { url: 'http://p:x' }} ] }", "invalid proxy URL"),
        ("leaf { remotes: [ {url: 'nats://h', proxy { url: 'http://' }} ] }", "must specify a host"),
        ("leaf { remotes: [ {url: 'nats://h', proxy { username: u }} ] }", "proxy URL must be specified"),
        (
            "leaf { remotes: [ {url: 'nats://h', proxy { url: 'http://p', username: u }} ] }",
            "proxy username and password must both be specified or both be empty",
        ),
        ("leaf { remotes: [ {url: 'nats://h', proxy { url: 'http://p', tls {} }} ] }", "speaks plain HTTP"),
        ("mqtt { port: 1883 }", 't.conf:1:8: field "port" of "mqtt" needs MQTT'),
        ("prof_port: 1", "t.conf:1:12: prof_port is 1; this server has no profiling port"),
        ("remote_syslog: 'ftp://h:1'", "t.conf:1:1: remote_syslog is"),
        ("https_port: 1", "t.conf:1:1: TLS cert and key required for HTTPS"),
        ("authorization { users: [ {nkey: U} ] }", 'Not a valid public nkey for a user: "U"'),
        (
            "authorization { users: [ {user: a, proxy_required: 1} ] }",
            "must be true or false",
        ),
        (
            "store_dir: a\njetstream { store_dir: b }",
            "t.conf:1:1: Duplicate 'store_dir' configuration",
        ),
        ("write_timeout: x", "t.conf:1:16: write_timeout must be 'default', 'close' or 'retry'"),
        ("server_tags: [1]", "t.conf:1:15: error parsing tags: 1"),
        ("server_metadata: x", "t.conf:1:18: error parsing metadata: server_metadata is 'x'"),
        ("max_sub_tokens: 256", "t.conf:1:17: max_sub_tokens is 256; it must be from 1 to 255"),
        ("max_closed_clients: -1", "t.conf:1:1: max_closed_clients is -1; it must be at least 0"),
        ("jetstream { cipher: aes }", "jetstream: cipher is set without key"),
        (
            "jetstream { cipher: rot13, key: k }",
            "unknown cipher type: 'rot13'; it must be chacha, chachapoly or aes",
        ),
        ("jetstream { prev_key: k }", "jetstream.prev_key is set without key"),
        ("port: abc", "t.conf:1:7: port is 'abc'; it must be an integer"),
        ("debug: 1", "t.conf:1:8: debug is 1; it must be true or false"),
        ('ping_interval: "xx"', "t.conf:1:16: error parsing ping_interval"),
        ("lame_duck_duration: 40", "lame_duck_duration is 40; it must be a string"),
        ('listen: "a:b:c"', 'could not parse address string "a:b:c"'),
        ('http: "localhost:a"', 'could not parse port "a"'),
        ("jetstream: foo", "Expected 'enabled' or 'disabled' for string value, got 'foo'"),
        ("jetstream { max_mem: 1X }", "max_mem"),
        ("authorization: 1", "authorization is 1; it must be a map"),
        ("jetstream { domain: 'a.b' }", "t.conf:1:1: jetstream.domain"),
        ("port: 70000", "port is 70000; it must be from -1 to 65535"),
        ('lame_duck_duration: "10s"', "lame_duck_duration"),
        ("authorization { user: a, token: b }", "Cannot have a user/pass and token"),
        (
            "authorization { user: a, users: [ {user: b} ] }",
            "Can not have a single user/pass and a users array",
        ),
        ("authorization { users: [ {user: b}, {user: b} ] }", 'Duplicate user "b" detected'),
        ("no_auth_user: zz", '"zz" not present'),
        ("server_name: 'a b'", "server name cannot contain spaces"),
    ],
)
def test_what_can_not_be_used_is_refused_by_name_and_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options(text)
    assert message in str(caught.value)
    assert str(caught.value).startswith("t.conf")


def test_a_key_that_is_used_as_a_variable_is_no_unknown_field() -> None:
    assert options("MY_PORT: 4333\nport: $MY_PORT").port == 4333


def test_a_bare_number_is_a_duration_in_seconds() -> None:
    assert options("ping_interval: 5").ping_interval_ns == 5_000_000_000


def test_an_address_without_host_keeps_the_default_host() -> None:
    found = options("listen: 4333")
    assert (found.host, found.port) == (ServerOptions().host, 4333)


def test_options_know_the_file_they_came_from(tmp_path: Path) -> None:
    file = tmp_path / "nats.conf"
    file.write_text("port: 4333\n")
    assert load(str(file)) == ServerOptions(port=4333, config_file=str(file))


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("debug: true\nport: 99999\ntrace: true", 2, 1),
        ("host: a\n  max_pending: 10\nport: 1", 2, 3),
        ("max_pending: 2MB\nport: 1\nmax_payload: 3MB\ndebug: true", 3, 1),
        ("debug: true\nno_auth_user: x\nauthorization { users: [ {user: a} ] }\ntrace: true", 2, 1),
        ("\nauthorization { user: a, token: b }\nport: 1", 2, 1),
        ("authorization { timeout: -1 }\nport: 1", 1, 1),
    ],
)
def test_what_the_options_refuse_is_reported_with_the_place_of_the_directive(
    text: str, line: int, column: int
) -> None:
    with pytest.raises(ConfigError) as caught:
        options(text)
    assert (caught.value.file, caught.value.line, caught.value.column) == ("t.conf", line, column)


def test_a_block_may_open_on_a_line_of_its_own() -> None:
    assert options("jetstream\n\n{\n  domain: hub\n}\nport\n: 4333") == ServerOptions(
        port=4333, jetstream=JetStreamOptions(domain="hub")
    )

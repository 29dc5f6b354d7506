"""Flags of `penstock serve`: those of the official server, and their help."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.cli import flags, signals
from penstock.cli.flag_options import options_of
from penstock.errors import ConfigError
from penstock.server.config.server_options import ClusterOptions, ServerOptions

pytestmark = pytest.mark.feature("cli.serve")

OFFICIAL = """
    a addr net p port n name server_name P pid m http_port ms https_port c config t sl signal client_advertise
    ports_file_dir l log T logtime logtime_utc s syslog r remote_syslog D debug V trace VV DV DVV
    log_size_limit max_traced_msg_len js jetstream sd store_dir user pass auth tls tlscert tlskey tlsverify
    tlscacert routes cluster cluster_name no_advertise cluster_advertise connect_retries cluster_listen
    profile h help v version help_tls
""".split()
OWN = ["web"]


def options(*words: str) -> ServerOptions:
    return options_of(flags.parse(list(words)))


def test_every_flag_of_the_official_server_is_known_and_no_other_but_our_own() -> None:
    """The flags that `nats-server --help` of version 2.15 lists."""
    known = [name for group in flags.GROUPS.values() for flag in group for name in flag.names]
    assert sorted(known) == sorted(OFFICIAL + OWN)


def test_help_shows_every_flag_once_in_groups() -> None:
    text = flags.usage("nats-server")
    assert all(title in text for title in flags.GROUPS)
    for group in flags.GROUPS.values():
        for flag in group:
            names = ", ".join(("-" if len(name) <= 3 else "--") + name for name in flag.names)
            assert text.count(f"    {names} ") == 1
    assert max(map(len, text.splitlines())) <= 120
    assert "\x1b" not in text
    coloured = flags.usage("nats-server", flags.coloured)
    assert "\x1b[36m--client_advertise\x1b[0m" in coloured


def test_help_for_tls_shows_a_block_and_the_suites() -> None:
    text = flags.tls_help()
    assert 'cert_file:      "./certs/server-cert.pem"' in text
    assert "    TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384\n" in text


def test_flags_of_one_dash_stand_for_several_options() -> None:
    found = options("-DVV")
    assert (found.debug, found.trace, found.trace_verbose) == (True, True, True)
    found = options("-VV")
    assert (found.debug, found.trace, found.trace_verbose) == (False, True, True)
    found = options("-DV", "--max_traced_msg_len=5", "-s", "-r", "udp://h:1", "--log_size_limit", "9")
    assert (found.debug, found.trace, found.trace_verbose) == (True, True, False)
    assert (found.max_traced_msg_len, found.syslog, found.log_size_limit) == (5, True, 9)
    assert found.remote_syslog == "udp://h:1"


@pytest.mark.parametrize("word", ["version", "help", "VERSION"])
def test_two_words_are_flags_without_a_dash(word: str) -> None:
    assert flags.parse([word]) == {word.lower(): True}


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("--routes", "nats://h:1"), "solicited routes require cluster capabilities, e.g. --cluster"),
        (("--cluster", "nats://h"), 'could not parse cluster url "nats://h"'),
        (("--cluster", "nats://h:1", "--routes", "nats://h"), 'error parsing routes url "nats://h"'),
        (("--cluster", "nats://h:1", "-js"), "jetstream cluster requires `server_name` to be set"),
        (("--profile", "6060"), "no profiling port"),
        (("-r", "ftp://h:1"), "invalid network type"),
        (("-ms", "8443"), "TLS cert and key required for HTTPS"),
        (("-ms", "1", "-m", "1"), "can't specify both HTTP (1) and HTTPs (1) ports"),
    ],
)
def test_what_this_server_does_not_have_is_refused(words: tuple[str, ...], reported: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options(*words)
    assert reported in str(caught.value)


def test_cluster_flags_that_open_nothing_pass() -> None:
    found = options("--cluster_name", "blue", "--no_advertise", "--connect_retries", "3", "--profile", "0")
    assert (found.cluster_name, found.cluster) == ("blue", None)


def test_cluster_flags_make_a_member() -> None:
    found = options(
        "--cluster", "nats://r:p%40ss@[::1]:-1", "--routes", "nats://a:1, nats://u:p@b:2,nats://a:1",
        "--no_advertise", "--cluster_advertise", "h:9", "--connect_retries", "3",
    ).cluster  # fmt: skip
    assert found == ClusterOptions(
        host="::1",
        port=-1,
        user="r",
        password="p@ss",
        routes=("nats://a:1", "nats://u:p@b:2"),
        no_advertise=True,
        advertise="h:9",
        connect_retries=3,
    )


def test_a_cluster_flag_replaces_the_configured_authorization(tmp_path: Path) -> None:
    conf = tmp_path / "a.conf"
    conf.write_text("cluster { port: 1, authorization { user: a, password: b }, pool_size: 5 }")
    found = options("-c", str(conf), "--cluster", "nats://h:2").cluster
    assert found == ClusterOptions(host="h", port=2, pool_size=5)
    assert options("-c", str(conf), "--cluster", "").cluster is None


# -- signals


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    sent: list[tuple[int, str]] = []
    by_number = {number: name for name, number in signals.BY_NAME.items()}
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append((pid, by_number[number])))
    monkeypatch.setattr(
        signals, "running", lambda program: {"one": [77], "many": [121, 122, 311]}.get(program, [])
    )
    return sent


@pytest.mark.parametrize("name", ["stop", "quit", "term", "reopen", "reload", "ldm"])
def test_every_signal_can_be_sent(name: str, sent: list[tuple[int, str]]) -> None:
    signals.send(f"{name}=1234")
    assert sent == [(1234, name)]


def test_a_signal_without_a_process_goes_to_the_only_one(sent: list[tuple[int, str]]) -> None:
    signals.send("reload", "one")
    signals.send("reload=*", "many")
    signals.send("ldm=12*", "many")
    assert sent == [
        (77, "reload"),
        (121, "reload"),
        (122, "reload"),
        (311, "reload"),
        (121, "ldm"),
        (122, "ldm"),
    ]


@pytest.mark.parametrize(
    ("wanted", "program", "reported"),
    [
        ("nope=1", "one", 'unknown signal "nope"'),
        ("quit=1=2", "one", "invalid signal parameters"),
        ("quit=abc", "one", "invalid pid: abc"),
        ("quit=a*", "one", "invalid pid: a"),
        ("quit", "none", "no none processes running"),
        ("quit", "many", "multiple many processes running: 121 122 311"),
    ],
)
def test_a_signal_that_means_no_process_is_refused(
    wanted: str, program: str, reported: str, sent: list[tuple[int, str]]
) -> None:
    with pytest.raises(ConfigError) as caught:
        signals.send(wanted, program)
    assert reported in str(caught.value)
    assert sent == []


def test_processes_are_found_by_the_name_they_were_started_by(tmp_path: Path) -> None:
    lines = {
        "10": ["/usr/bin/python3.11", "/opt/bin/nats-server", "-p", "4222"],
        "11": ["/usr/local/bin/nats-server", "-js"],
        "12": ["python", "-m", "penstock", "serve", "-js"],
        "13": ["/venv/bin/python", "/venv/bin/penstock", "serve"],
        "14": ["vi", "nats-server"],
        "15": ["python", "-c", "penstock serve"],
        "16": ["python", "/venv/bin/penstock", "version"],
        "17": [""],
        str(os.getpid()): ["nats-server", "--signal", "quit"],
    }
    for pid, words in lines.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes("\0".join([*words, ""]).encode())
    (tmp_path / "18").mkdir()
    (tmp_path / "self").mkdir()
    assert signals.running("nats-server", str(tmp_path)) == [10, 11]
    assert signals.running("penstock serve", str(tmp_path)) == [12, 13]
    with pytest.raises(ConfigError, match="unable to resolve pid"):
        signals.running("nats-server", str(tmp_path / "none"))


@pytest.mark.parametrize(("word", "meant"), [("--confg", "--config"), ("-jetstrem", "--jetstream")])
def test_an_unknown_flag_names_the_one_that_was_meant(word: str, meant: str) -> None:
    with pytest.raises(flags.FlagError, match=rf"not defined: -\w+; did you mean '{meant}'\?; see --help"):
        flags.parse([word])

"""The block `tls` of nats.conf and the flags of TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli import flags
from penstock.cli.flag_options import options_of as options_of_flags
from penstock.errors import ConfigError
from penstock.server.config import conf_parser
from penstock.server.config.directives import options_of
from penstock.server.config.server_options import ServerOptions, TlsOptions

pytestmark = pytest.mark.feature("connectivity.tls")

FILES = 'cert_file: "c.pem", key_file: "k.pem"'


def read(text: str) -> ServerOptions:
    return options_of(conf_parser.parse(text))


def tls_of(inside: str) -> TlsOptions:
    found = read(f"tls {{ {FILES}, {inside} }}").tls
    assert found is not None
    return found


def test_the_defaults_are_those_of_the_official_server() -> None:
    assert read(f"tls {{ {FILES} }}").tls == TlsOptions(cert_file="c.pem", key_file="k.pem")


def test_every_directive_sets_its_option() -> None:
    options = read(
        f'tls {{ {FILES}, ca_file: "ca.pem", verify: true, timeout: 0.5, min_version: "1.3",\n'
        "cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256], handshake_first: true }\n"
        "allow_non_tls: true"
    )
    assert options.allow_non_tls
    assert options.tls == TlsOptions(
        cert_file="c.pem",
        key_file="k.pem",
        ca_file="ca.pem",
        verify=True,
        timeout_ns=500_000_000,
        min_version="1.3",
        cipher_suites=("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",),
        handshake_first=True,
    )


@pytest.mark.parametrize(
    ("value", "first", "wait_ns"),
    [
        ("true", True, 0),
        ("false", False, 0),
        ("auto", True, 50_000_000),
        ('"auto"', True, 50_000_000),
        ('"300ms"', True, 300_000_000),
    ],
)
def test_handshake_first_is_a_boolean_auto_or_a_duration(value: str, first: bool, wait_ns: int) -> None:
    found = tls_of(f"handshake_first: {value}")
    assert (found.handshake_first, found.handshake_first_wait_ns) == (first, wait_ns)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ('tls { key_file: "k.pem" }', "missing 'cert_file' in TLS configuration"),
        ('tls { cert_file: "c.pem" }', "missing 'key_file' in TLS configuration"),
        (f"tls {{ {FILES}, min_version: 1.1 }}", 'unsupported TLS version "1.1"'),
        (f"tls {{ {FILES}, ocsp_peer: true }}", 'field "ocsp_peer" is not supported'),
        (f"tls {{ {FILES}, shiny: true }}", 'unknown field "shiny"'),
        (f"tls {{ {FILES}, timeout: 0 }}", "tls.timeout is 0"),
        (f"tls {{ {FILES}, cipher_suites: [] }}", "not empty"),
        (f"tls {{ {FILES}, handshake_first: soon }}", "error parsing handshake_first"),
        ("tls: on", "must be a map"),
    ],
)
def test_what_is_wrong_is_named(text: str, reported: str) -> None:
    with pytest.raises(ConfigError, match=reported):
        read(text)


def test_the_flags_set_the_same_options() -> None:
    found = flags.parse(["--tlsverify", "--tlscert=c.pem", "--tlskey", "k.pem", "--tlscacert", "ca.pem"])
    assert options_of_flags(found).tls == TlsOptions(
        cert_file="c.pem", key_file="k.pem", ca_file="ca.pem", verify=True
    )


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    path.write_text(f"tls {{ {FILES}, timeout: 7 }}")
    found = flags.parse(["-c", str(path), "--tls", "--tlscert", "other.pem"])
    assert options_of_flags(found).tls == TlsOptions(
        cert_file="other.pem", key_file="k.pem", timeout_ns=7_000_000_000
    )


def test_files_without_the_switch_mean_nothing() -> None:
    assert options_of_flags(flags.parse(["--tlscert", "c.pem"])).tls is None


def test_the_switch_without_files_is_refused() -> None:
    with pytest.raises(ConfigError, match="missing 'cert_file'"):
        options_of_flags(flags.parse(["--tls"]))

"""Exports and imports in nats.conf: read, and refused in the official server's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.routing.imports_exports import (
    Latency,
    ResponseType,
    ServiceExport,
    ServiceImport,
    StreamExport,
    StreamImport,
)
from penstock.server.config.conf_parser import parse
from penstock.server.config.directives import load, options_of
from penstock.server.config.server_options import AccountJetStream, AccountOptions, ServerOptions
from tests.support.conf_servers import official_verdict

pytestmark = pytest.mark.feature("security.accounts", "operations.configuration")


def test_every_field_of_exports_and_imports_is_read() -> None:
    options = options_of(
        parse(
            """
            accounts {
              A {
                exports: [
                  { stream: "pub.>" }
                  { Stream: "own.*", accounts: [B, C], account_token_position: 2 }
                  { service: "s.*", accounts: [B], response_type: chunked, response_threshold: "5s",
                    allow_trace: true }
                  { service: "t", response: "single", latency: { sampling: 25%, subject: lat.t } }
                  { service: "u", threshold: "1m", latency: { sampling: headers, subject: lat.u } }
                  { service: "w.*.*", response: stream }
                ]
                limits: { max_pay: 100, max_leafs: 3 }
                jetstream: { max_bytes: true, mem_max_stream_bytes: 1024, disk_max_stream_bytes: 2048 }
              }
              B {
                imports: [
                  { stream: { account: A, subject: "pub.a.*" }, prefix: "from.a", allow_trace: true }
                  { stream: { account: A, subject: "pub.*.b" }, to: "b.$1" }
                  { service: { account: A, subject: "s.*" }, to: "mine.*", share: true }
                  { service: { account: A, subject: "t" } }
                ]
              }
              C {}
            }
            """,
            "t.conf",
            environ={},
        )
    )
    a, b = options.account("A"), options.account("B")
    assert a is not None
    assert b is not None
    minute = 60_000_000_000
    assert a.exports == (
        StreamExport(subject="pub.>"),
        StreamExport(subject="own.*", accounts=("B", "C"), account_token_position=2),
        ServiceExport(
            subject="s.*",
            accounts=("B",),
            response=ResponseType.CHUNKED,
            response_threshold_ns=5_000_000_000,
            allow_trace=True,
        ),
        ServiceExport(subject="t", latency=Latency(subject="lat.t", sampling=25)),
        ServiceExport(
            subject="u", response_threshold_ns=minute, latency=Latency(subject="lat.u", sampling=0)
        ),
        ServiceExport(subject="w.*.*", response=ResponseType.STREAMED),
    )
    assert (a.max_payload, a.max_leafnodes) == (100, 3)
    assert a.jetstream == AccountJetStream(
        max_bytes_required=True, memory_max_stream_bytes=1024, file_max_stream_bytes=2048
    )
    assert b.imports == (
        StreamImport(account="A", subject="pub.a.*", to="from.a.pub.a.*", allow_trace=True),
        StreamImport(account="A", subject="pub.*.b", to="b.$1"),
        ServiceImport(account="A", subject="s.*", to="mine.*", share=True),
        ServiceImport(account="A", subject="t"),
    )


EXPORTS = """exports: [ {stream: "s.>"}, {service: "r.*"}, {service: "q.*.*"}, {stream: own.*, accounts: [C]},
    {stream: "tok.*.x", account_token_position: 2}, {service: "priv", accounts: [C]} ]"""


@pytest.mark.official
@pytest.mark.parametrize(
    "entry",
    [
        "{stream: {account: X, subject: s.1}}",
        "{service: {account: X, subject: s.1}}",
        "{stream: {account: A, subject: nope}}",
        "{service: {account: A, subject: nope}}",
        "{stream: {account: A, subject: own.1}}",
        "{service: {account: A, subject: priv}}",
        "{stream: {account: A, subject: tok.C.x}}",
        "{stream: {account: A, subject: 'tok.*.x'}}",
        "{stream: {account: A, subject: 's.*'}, to: 'x.y'}",
        "{stream: {account: A, subject: 's.*'}, to: 'x.$2'}",
        "{stream: {account: A, subject: 's.*'}, to: 'x.{{partition(3,1)}}'}",
        "{stream: {account: A, subject: 's.>'}, to: 'x.y'}",
        "{stream: {account: A, subject: 's.1'}}, {stream: {account: A, subject: 's.1'}, to: z}",
        "{stream: {account: A, subject: 's.1'}, prefix: 'a.*'}",
        "{service: {account: A, subject: 'r.*'}, to: 'x.y'}",
        "{service: {account: A, subject: 'q.*.*'}, to: 'x.$1.y'}",
        "{service: {account: A, subject: 'q.*.*'}, to: 'x.$1.$3'}",
        "{service: {account: A, subject: 'r..x'}}",
        "{service: {account: A, subject: 'r.1'}, to: 'a b'}",
        "{service: {account: A, subject: 'r.1'}, to: a}, {service: {account: A, subject: 'r.2'}, to: a}",
        "{stream: {account: A}}",
        "{service: {subject: x}}",
        "{service: {account: A, subject: 'r.1'}, allow_trace: true}",
    ],
)
def test_imports_are_refused_in_the_official_words(entry: str, tmp_path: Path) -> None:
    refused_alike(f"accounts {{\nA {{ {EXPORTS} }}\nB {{ imports: [\n{entry}\n]}}\nC {{}}\n}}", tmp_path, 5)


@pytest.mark.official
@pytest.mark.parametrize(
    "entry",
    [
        "{stream: s, accounts: [X]}",
        "{service: s, accounts: [X]}",
        "{service: s, response: never}",
        "{service: 's.*', account_token_position: 1}",
        "{stream: 's.*', account_token_position: 3}",
        "{service: s, latency: {sampling: 0, subject: l}}",
        "{service: s, latency: {sampling: 101, subject: l}}",
        "{service: s, latency: {sampling: 10}}",
        "{service: s, latency: 'l.*'}",
        "{service: s, latency: s}",
        "{service: s, latency: l, response: stream}",
        "{stream: s, latency: l}",
    ],
)
def test_exports_are_refused_in_the_official_words(entry: str, tmp_path: Path) -> None:
    refused_alike(f"accounts {{\nA {{ exports: [\n{entry}\n]}}\n}}", tmp_path, 3)


@pytest.mark.official
@pytest.mark.parametrize(
    "conf",
    [
        # The official server takes accounts in any order: the subject it names is the same in both.
        """A { exports: [{service: x}], imports: [{service: {account: B, subject: x}}] }
           B { exports: [{service: x}], imports: [{service: {account: A, subject: x}}] }""",
        """A { exports: [{stream: x}], imports: [{stream: {account: B, subject: x}}] }
           B { exports: [{stream: x}], imports: [{stream: {account: A, subject: x}}] }""",
    ],
)
def test_cycles_are_refused(conf: str, tmp_path: Path) -> None:
    refused_alike(f"accounts {{\n{conf}\n}}", tmp_path, None, "import forms a cycle")


@pytest.mark.official
@pytest.mark.parametrize(
    "conf",
    [
        """A { exports: [{service: x}], imports: [{service: {account: B, subject: y}, to: z}] }
           B { exports: [{service: y}], imports: [{service: {account: A, subject: x}, to: w}] }""",
        f"""A {{ {EXPORTS} }}
           B {{ imports: [
             {{stream: {{account: A, subject: tok.B.x}}}}, {{stream: {{account: A, subject: s.1}}}}
             {{service: {{account: A, subject: 'q.*.*'}}, to: 'x.$2.$1'}}
           ] }}
           C {{}}""",
        """A { exports: [{service: x}], imports: [{service: {account: C, subject: z}, to: x}] }
           B { exports: [{service: y}], imports: [{service: {account: A, subject: x}, to: y}] }
           C { exports: [{service: z}], imports: [{service: {account: B, subject: y}, to: z}] }""",
        "A { exports: [] , imports: [] }",
    ],
)
def test_what_the_official_server_takes_is_taken(conf: str, tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    path.write_text(f"accounts {{\n{conf}\n}}", encoding="utf-8")
    assert "configuration file" in official_verdict(path).splitlines()[-1]
    load(str(path))


def test_accounts_made_in_python_are_checked_with_each_other() -> None:
    entry = ServiceImport(account="A", subject="x")
    with pytest.raises(ConfigError, match="service import not authorized"):
        ServerOptions(accounts=(AccountOptions(name="A"), AccountOptions(name="B", imports=(entry,))))


def refused_alike(conf: str, tmp_path: Path, line: int | None, text: str = "") -> None:
    """Both refuse it; ours in words the official server has, at this line."""
    path = tmp_path / "nats.conf"
    path.write_text(conf, encoding="utf-8")
    reported = official_verdict(path)
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    assert caught.value.message in reported
    assert text in reported
    assert line is None or caught.value.line == line

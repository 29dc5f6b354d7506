"""Directives without effect in a server without clustering, or unsupported ones, on both servers."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.server.config.directives import load
from tests.support.conf_servers import official_verdict, running_as_configured, write_conf
from tests.support.nats_servers import KINDS, free_port
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("operations.configuration")

WITHOUT_EFFECT = """
    server_tags: ["gpu", "EU:west"]
    connect_error_reports: 10
    reconnect_error_reports: 1
    prof_block_rate: 0
    feature_flags { js_ack_fc_v2: false, js_raft_delete_range: true, whatever: true }
    ocsp: false
    ocsp_cache: false
    http: 127.0.0.1:%d
    jetstream {
        extension_hint: "no_extend"
        max_concurrent_io: 16
        max_outstanding_catchup: 64MB
        meta_compact: 100
        meta_compact_size: 1MB
        meta_compact_sync: true
        unique_tag: " EU:"
        limits { max_ha_assets: 10 }
    }
"""


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_for_clusters_is_accepted(kind: str, tmp_path: Path) -> None:
    http_port = free_port()
    url = f"http://127.0.0.1:{http_port}/jsz?config=1"
    with (
        running_as_configured(kind, WITHOUT_EFFECT % http_port, tmp_path),
        urllib.request.urlopen(url, timeout=10) as page,
    ):
        assert json.load(page)["config"]["unique_tag"] == "eu:"


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_is_placed_on_the_only_server_there_is(kind: str, tmp_path: Path) -> None:
    with running_as_configured(kind, WITHOUT_EFFECT % free_port(), tmp_path) as port:
        client = RawNats(port)
        for placement in ({"tags": ["gpu"]}, {"tags": ["cpu", "!gpu"]}, {"cluster": "C", "tags": ["GPU"]}):
            body = {"name": "S", "subjects": ["s"], "storage": "memory", "placement": placement}
            for verb in ("CREATE", "UPDATE"):
                assert client.request(f"$JS.API.STREAM.{verb}.S", body)["config"]["placement"] == placement
            assert client.request("$JS.API.STREAM.DELETE.S")["success"]
        error = client.request("$JS.API.STREAM.CREATE.S", body | {"placement": {"preferred": "me"}})["error"]
        assert (error["err_code"], error["description"]) == (
            10052,
            "preferred server not permitted in placement",
        )
        client.close()


@pytest.mark.parametrize(
    ("conf", "text"),
    [
        ("ocsp: true", "can't staple OCSP responses to its certificate, because Python's ssl has no way to"),
        ("ocsp { mode: always }", "can't staple OCSP responses"),
        ("ocsp { url: a }", "can't staple OCSP responses"),
        ("ocsp_cache: true", "checks no certificates by OCSP"),
        ("ocsp_cache { type: none }", "checks no certificates by OCSP"),
        ("feature_flags { js_ack_fc_v2: true }", "ack subjects of the first form alone"),
        ("feature_flags { a: 1 }", 'error parsing feature flag "a": expected bool'),
        ("jetstream { tpm { keys_file: a } }", "takes no keys from a TPM"),
        ("jetstream { max_concurrent_io: 3 }", "between 4 and 8192"),
        ("jetstream { meta_compact: -1 }", "Expected an absolute size"),
        ("jetstream { meta_compact_size: -1 }", "Expected an absolute size"),
        ("jetstream { meta_compact_sync: 1 }", "must be true or false"),
        ("connect_error_reports: x", "must be an integer"),
        ("resolver_tls { }", "not supported by this server yet"),
    ],
)
def test_what_can_not_be_had_is_refused_with_the_reason(conf: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nats\.conf:1:") as refused:
        load(str(write_conf(conf, tmp_path)))
    assert text in str(refused.value)


@pytest.mark.parametrize("more", ["", "jetstream: enabled", "system_account: SYS"])
@pytest.mark.parametrize("kind", KINDS)
def test_without_a_system_account_no_service_is_measured(kind: str, more: str, tmp_path: Path) -> None:
    # The official server reads a map in an order of its own, and notices if `no_system_account` comes first.
    conf = f"""
        no_system_account: true
        {more}
        accounts {{
            SYS {{ users: [ {{ user: s, password: s }} ] }}
            A {{
                users: [ {{ user: a, password: a }} ]
                exports: [ {{ service: "svc", latency: {{ subject: "took" }} }} ]
            }}
        }}
    """
    path = write_conf(conf, tmp_path)
    message = 'Error adding service latency sampling for "svc": system account not setup'
    if kind == "penstock":
        with pytest.raises(ConfigError) as refused:
            load(str(path))
        assert message in str(refused.value)
        return
    said = ""
    for _ in range(50):
        said = official_verdict(path)
        if message in said:
            break
    assert message in said

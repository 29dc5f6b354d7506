"""Servers that cannot be dialled, because what names them is no host name."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.server.config.directives import load
from penstock.server.logging import logs
from penstock.server.server import Server
from tests.support.conf_servers import write_conf
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("cluster.route-security")

CONF = """
listen: "127.0.0.1:-1"
cluster { name: c, listen: "127.0.0.1:-1", routes: ["nats://a..b:1"] }
gateway { name: c, listen: "127.0.0.1:-1", gateways: [ { name: d, url: "nats://a..b:1" } ] }
leafnodes { reconnect: "1s", remotes: [ { url: "nats://a..b:1" } ] }
"""


async def test_a_server_of_a_text_that_is_no_host_name_is_dialled_again(tmp_path: Path) -> None:
    """Any server may announce such an address; the attempt must not be the last one."""
    lines: list[str] = []
    log = logs.Log(lambda label, text: lines.append(text), debug=True)
    server = Server(options=load(str(write_conf(CONF, tmp_path))), log=log)
    await server.start()
    try:
        for kind in ("route", "gateway", "leafnode"):

            def was_dialled_again(kind: str = kind) -> bool:
                again = [one for one in lines if kind in one and "(attempt 2)" in one]
                return any("'a..b' is no host name" in one for one in again)

            await until(was_dialled_again)
    finally:
        await server.stop()

"""Accounts' JetStream limits are reserved up front, on both servers."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.nats_servers import KINDS
from tests.support.processes import ENVIRONMENT, command_of, served
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("security.account-limits")


def conf(directory: Path, **limits: str) -> str:
    accounts = "\n".join(
        f"{name}: {{ users: [ {{ user: {name}, password: {name} }} ], jetstream: {{ {limit} }} }}"
        for name, limit in limits.items()
    )
    return f"""
jetstream {{ store_dir: "{directory}/js", max_mem: 1000, max_file: 10000 }}
accounts {{
    SYS {{ users: [ {{ user: s, password: s }} ] }}
    {accounts}
}}
system_account: SYS
"""


def login(port: int, user: str) -> RawNats:
    return RawNats(port, user=user, **{"pass": user})


def max_memory(port: int, account: str) -> Any:
    return login(port, account).request("$JS.API.INFO")["limits"]["max_memory"]


@pytest.mark.parametrize(("a", "b", "reported"), [
    ("max_mem: 600", "max_mem: 401", "insufficient memory resources available (10028)"),
    ("max_file: 6000", "max_file: 4001", "insufficient storage resources available (10047)"),
])  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_whose_accounts_reserve_too_much_does_not_start(
    kind: str, a: str, b: str, reported: str, tmp_path: Path
) -> None:
    path, log = tmp_path / "nats.conf", tmp_path / "server.log"
    path.write_text(conf(tmp_path, a=a, b=b))
    command = [*command_of(kind), "-a", "127.0.0.1", "-p", "-1", "-c", str(path), "-l", str(log)]
    ended = subprocess.run(
        command, env=ENVIRONMENT, timeout=20, check=False, capture_output=True, text=True, encoding="utf-8"
    )
    assert ended.returncode == 1
    expected = f"Error enabling jetstream on configured accounts: {reported}"
    assert expected in log.read_text() + ended.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_accounts_may_reserve_all_there_is_and_others_share_what_is_left(kind: str, tmp_path: Path) -> None:
    limits = {"a": "max_mem: 600, max_file: 10000", "b": "max_mem: 400, max_file: 0", "c": "max_streams: 9"}
    with served(kind, tmp_path, conf(tmp_path, **limits)) as server:
        assert [max_memory(server.port, name) for name in limits] == [600, 400, -1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_reload_that_reserves_too_much_leaves_an_account_its_limits(kind: str, tmp_path: Path) -> None:
    with served(kind, tmp_path, conf(tmp_path, a="max_mem: 600", b="max_mem: 400")) as server:
        system = login(server.port, "s")

        def reload(**limits: str) -> None:
            (tmp_path / "nats.conf").write_text(conf(tmp_path, **limits))
            answer = system.request(f"$SYS.REQ.SERVER.{system.info['server_id']}.RELOAD")
            assert "error" not in answer

        reload(a="max_mem: 700", b="max_mem: 400")
        server.wait_for("insufficient memory resources available (10028)")
        if kind == "penstock":  # the official server forgets JetStream of whichever its map brings up
            assert [max_memory(server.port, name) for name in "ab"] == [600, 400]
        reload(a="max_mem: 600", b="max_mem: 200")
        reload(a="max_mem: 800", b="max_mem: 200")
        assert [max_memory(server.port, name) for name in "ab"] == [800, 200]


def test_a_reload_may_move_reservations_from_account_to_account(tmp_path: Path) -> None:
    with served("penstock", tmp_path, conf(tmp_path, a="max_mem: 600", b="max_mem: 400")) as server:
        system = login(server.port, "s")
        (tmp_path / "nats.conf").write_text(conf(tmp_path, a="max_mem: 900", c="max_mem: 100"))
        system.request(f"$SYS.REQ.SERVER.{system.info['server_id']}.RELOAD")
        assert [max_memory(server.port, name) for name in "ac"] == [900, 100]

"""`penstock cluster up`: it starts servers that form a cluster, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.support.command_runs import CommandShell
from tests.support.nats_servers import free_port

pytestmark = pytest.mark.feature("cli.cluster")


def _ports(number: int) -> list[str]:
    """Options with ports that are free for so many servers."""
    words = []
    for name in ("--port", "--cluster-port", "--http-port"):
        ports = [free_port()]
        while len(ports) < number:
            ports = ports if (port := free_port()) == ports[-1] + 1 else [port][:0]
            ports.append(port)
        words += [name, str(ports[0])]
    return words


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_servers_form_a_cluster_and_end_with_the_command(tmp_path: Path) -> None:
    shell = CommandShell(tmp_path)
    words = ["cluster", "up", "2", *_ports(2), "--core", "--json", "--dir", str(tmp_path / "cluster")]
    process = shell.start(*words)
    assert process.stdout is not None
    found = [json.loads(line) for line in (process.stdout.readline(), process.stdout.readline()) if line]
    assert [one["name"] for one in found] == ["local-1", "local-2"], process.communicate()
    assert all(one["varz"]["routes"] >= 1 for one in found)
    ports = [one["varz"]["port"] for one in found]
    first, second = (CommandShell(tmp_path, one["url"]) for one in found)
    latency = first.json("latency", "--server-b", found[1]["url"], "--duration", "100ms")
    assert latency["received"] == latency["messages"]
    assert second.ok("rtt").text
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, b"The cluster has ended" in err or not err) == (0, True), err
    assert not any(_is_listening(port) for port in ports)
    for one in found:
        with pytest.raises(ProcessLookupError):
            os.kill(one["pid"], 0)


def test_streams_are_replicated_and_there_again_in_the_next_run(tmp_path: Path) -> None:
    shell = CommandShell(tmp_path)
    words = ["cluster", "up", "3", *_ports(3), "--json", "--dir", str(tmp_path / "cluster")]
    for is_first in (True, False):
        process = shell.start(*words)
        assert process.stdout is not None
        found = [json.loads(line) for line in (process.stdout.readline() for _ in range(3)) if line]
        assert len(found) == 3, process.communicate()
        assert len({one["jsz"]["meta_cluster"]["leader"] for one in found}) == 1
        client = CommandShell(tmp_path, found[2]["url"])
        if is_first:
            words_of_stream = ["stream", "add", "S", "--subjects", "s.>", "--replicas", "3", "--defaults"]
            deadline = time.monotonic() + 20  # the meta leader learns of the others after its election
            while client.run(*words_of_stream).status:
                assert time.monotonic() < deadline, client.run(*words_of_stream)
            client.ok("pub", "--jetstream", "s.1", "kept")
        deadline = time.monotonic() + 20
        while not (info := client.json("stream", "info", "S"))["cluster"].get("leader"):
            assert time.monotonic() < deadline, info
        assert (len(info["cluster"]["replicas"]), info["state"]["messages"]) == (2, 1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 0


def test_a_server_that_can_not_start_ends_the_others(tmp_path: Path) -> None:
    shell = CommandShell(tmp_path)
    words = _ports(2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(words[1]) + 1))
        taken.listen()
        ran = shell.run("cluster", "up", "2", *words, "--dir", str(tmp_path / "cluster"))
    assert (ran.status, "server local-2 ended with" in ran.err) == (1, True), ran
    assert not _is_listening(int(words[1]))


def test_a_cluster_ends_after_its_duration(tmp_path: Path) -> None:
    words = _ports(1)
    ran = CommandShell(tmp_path).ok("cluster", "up", "1", *words, "--duration", "100ms")
    assert "Cluster of 1 servers: nats://127.0.0.1:" in ran.text
    assert not _is_listening(int(words[1]))


def test_ports_that_overlap_are_refused(tmp_path: Path) -> None:
    ran = CommandShell(tmp_path).run("cluster", "up", "3", "--port", "4222", "--http-port", "4223")
    assert (ran.status, "leave no room for 3 servers" in ran.err) == (2, True)
    many = CommandShell(tmp_path).run("cluster", "up", "99")
    assert (many.status, "at most 9" in many.err) == (2, True)

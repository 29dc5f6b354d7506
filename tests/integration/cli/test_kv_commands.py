"""`penstock kv` on both servers, and beside the official command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_runs import CommandShell
from tests.support.nats_servers import KINDS, running_server

pytestmark = pytest.mark.feature("cli.buckets")


@pytest.fixture(params=KINDS)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CommandShell]:
    with running_server(request.param, tmp_path / "store") as server:
        yield CommandShell(tmp_path, server.url)


def test_the_commands_of_the_documentation_work(shell: CommandShell) -> None:
    shell.ok("kv", "add", "my-kv")
    assert shell.ok("kv", "put", "my-kv", "Key1", "Value1").text == "Value1\n"
    got = shell.ok("kv", "get", "my-kv", "Key1").text
    assert got.startswith("my-kv > Key1 revision: 1 created @ ")
    assert got.endswith("\n\nValue1\n\n")
    shell.ok("kv", "del", "my-kv", "Key1", "--force")
    missing = shell.run("kv", "get", "my-kv", "Key1")
    assert (missing.status, missing.text) == (1, "")
    assert "it was deleted" in missing.err


def test_a_bucket_has_the_settings_of_the_flags(shell: CommandShell) -> None:
    shell.ok(
        "kv", "add", "B", "--history", "5", "--ttl", "1h", "--max-value-size", "1K",
        "--max-bucket-size", "1M", "--storage", "memory", "--description", "mine", "--metadata", "a=b",
        "--marker-ttl", "2s", "--compress",
    )  # fmt: skip
    config = shell.json("kv", "info", "B")["config"]
    assert {name: config[name] for name in ("history", "ttl", "max_value_size", "max_bytes")} == {
        "history": 5, "ttl": 3600, "max_value_size": 1024, "max_bytes": 1024 * 1024,
    }  # fmt: skip
    assert (config["storage"], config["description"], config["metadata"]) == ("memory", "mine", {"a": "b"})
    assert (config["limit_marker_ttl"], config["compression"]) == (2, True)
    shell.ok("kv", "edit", "B", "--history", "7")
    changed = shell.json("kv", "info", "B")["config"]
    assert changed == {**config, "history": 7}
    text = shell.ok("kv", "info", "B").text
    assert "History Kept: 7" in text
    assert "Maximum Value Size: 1.0 KiB" in text
    nothing = shell.run("kv", "edit", "B")
    assert (nothing.status, "no setting was given" in nothing.err) == (1, True)


def test_keys_and_buckets_are_listed(shell: CommandShell) -> None:
    assert "No Key-Value buckets found" in shell.ok("kv", "ls").text
    shell.ok("kv", "add", "B")
    assert "No keys found" in shell.ok("kv", "ls", "B").text
    for key in ("a.x", "a.y", "b"):
        shell.ok("kv", "put", "B", key, f"value of {key}")
    assert shell.ok("kv", "ls", "--names").text == "B\n"
    assert sorted(shell.json("kv", "ls", "B")) == ["a.x", "a.y", "b"]
    assert sorted(shell.json("kv", "ls", "B", "a.*")) == ["a.x", "a.y"]
    table = shell.ok("kv", "ls", "B", "--verbose", "--display-value").text
    assert "value of a.x" in table
    assert "Contents for bucket 'B'" in table
    assert "Last Update" in shell.ok("kv", "ls").text


def test_values_are_written_under_conditions(shell: CommandShell) -> None:
    shell.ok("kv", "add", "B", "--history", "3")
    assert shell.json("kv", "create", "B", "k", "1") == {"bucket": "B", "key": "k", "revision": 1}
    exists = shell.run("kv", "create", "B", "k", "2")
    assert (exists.status, "exists at revision 1" in exists.err) == (1, True), exists.err
    assert shell.json("kv", "update", "B", "k", "2", "1")["revision"] == 2
    wrong = shell.run("kv", "update", "B", "k", "3", "1")
    assert (wrong.status, "revision" in wrong.err) == (1, True)
    assert shell.json("kv", "revert", "B", "k", "1", "--force")["revision"] == 3
    assert shell.json("kv", "get", "B", "k")["value"] == "1"
    assert shell.json("kv", "get", "B", "k", "--revision", "2")["value"] == "2"
    assert [one["value"] for one in shell.json("kv", "history", "B", "k")] == ["1", "2", "1"]
    assert "History for B > k" in shell.ok("kv", "history", "B", "k").text


def test_a_value_is_any_bytes_of_stdin(shell: CommandShell) -> None:
    value = bytes(range(256)) * 3
    shell.ok("kv", "add", "B")
    shell.ok("kv", "put", "B", "k", stdin=value)
    assert shell.ok("kv", "get", "B", "k", "--raw").out == value
    assert "value_base64" in shell.json("kv", "get", "B", "k")
    assert "use --raw for full data" in shell.ok("kv", "get", "B", "k").text


def test_deleted_keys_leave_markers_until_they_are_compacted(shell: CommandShell) -> None:
    shell.ok("kv", "add", "B", "--history", "5")
    for value in ("1", "2"):
        shell.ok("kv", "put", "B", "k", value)
    shell.ok("kv", "del", "B", "k", "--force")
    assert [one["operation"] for one in shell.json("kv", "history", "B", "k")] == ["PUT", "PUT", "DEL"]
    shell.ok("kv", "purge", "B", "k", "--force")
    assert [one["operation"] for one in shell.json("kv", "history", "B", "k")] == ["PURGE"]
    assert shell.json("kv", "compact", "B", "--force", "--older-than", "0") == {"bucket": "B", "removed": 1}
    shell.ok("kv", "rm", "B", "--force")
    assert shell.json("kv", "ls", "--names") == []


def test_nothing_is_deleted_without_force_and_without_a_terminal(shell: CommandShell) -> None:
    shell.ok("kv", "add", "B")
    refused = shell.run("kv", "rm", "B")
    assert (refused.status, "give --force" in refused.err) == (2, True)
    assert shell.json("kv", "ls", "--names") == ["B"]


def test_a_watch_prints_values_and_deletes(shell: CommandShell) -> None:
    shell.ok("kv", "add", "B", "--history", "5")
    shell.ok("kv", "put", "B", "a", "1")
    shell.ok("kv", "put", "B", "a", "2")
    shell.ok("kv", "del", "B", "a", "--force")
    shell.ok("kv", "put", "B", "b", "3")
    watched = shell.ok("kv", "watch", "B", "--history", "--count", "4", "--json").json_lines
    assert [(one["key"], one["operation"]) for one in watched] == [
        ("a", "PUT"), ("a", "PUT"), ("a", "DEL"), ("b", "PUT"),
    ]  # fmt: skip
    text = shell.ok("kv", "watch", "B", "--no-deletes", "--count", "1").text
    assert text.endswith("] PUT B > b: 3\n")


def test_a_mirror_and_sources_copy_other_buckets(shell: CommandShell) -> None:
    shell.ok("kv", "add", "ORIGIN")
    shell.ok("kv", "add", "COPY", "--mirror", "ORIGIN")
    shell.ok("kv", "add", "MIX", "--source", "ORIGIN")
    assert shell.json("kv", "info", "COPY")["config"]["mirror"]["name"] == "KV_ORIGIN"
    assert [one["name"] for one in shell.json("kv", "info", "MIX")["config"]["sources"]] == ["KV_ORIGIN"]
    assert "Mirror Information" in shell.ok("kv", "info", "COPY").text


@pytest.mark.feature("cli.nats")
def test_both_command_lines_read_what_the_other_wrote(shell: CommandShell) -> None:
    shell.official("kv", "add", "THEIRS", "--history", "4")
    shell.official("kv", "put", "THEIRS", "k", "from nats")
    assert shell.json("kv", "get", "THEIRS", "k")["value"] == "from nats"
    assert shell.json("kv", "info", "THEIRS")["config"]["history"] == 4
    shell.ok("kv", "add", "OURS", "--history", "4")
    shell.ok("kv", "put", "OURS", "k", "from penstock")
    assert shell.official("kv", "get", "OURS", "k", "--raw") == "from penstock"
    assert "History Kept: 4" in shell.official("kv", "info", "OURS")

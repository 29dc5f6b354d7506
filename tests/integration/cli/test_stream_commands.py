"""`penstock stream ...` against both servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine

pytestmark = pytest.mark.feature("cli.commands")


def test_a_stream_is_created_as_the_options_say(run: CommandLine) -> None:
    ran = run(
        *("stream", "add", "ORDERS", "--storage", "file", "--subjects", "ORDERS.*", "--ack"),
        *("--retention", "limits", "--discard", "old", "--max-msgs=-1", "--max-bytes=-1", "--max-age=1y"),
        *("--max-msg-size=-1", "--dupe-window", "1m", "--metadata", "team=a", "--description", "all orders"),
    )
    assert ran.rows["Subjects"] == "ORDERS.*"
    assert ran.rows["Maximum Age"] == "1y"
    assert ran.rows["Maximum Messages"] == "unlimited"
    assert ran.rows["Duplicate Window"] == "1m"
    assert ran.rows["team"] == "a"
    config = run("stream", "info", "ORDERS", "--json").json["config"]
    assert (config["max_age"], config["description"]) == (31_536_000_000_000_000, "all orders")
    assert config["allow_direct"] is True


def test_every_option_reaches_the_server(run: CommandLine) -> None:
    run("stream", "add", "A", "--subjects", "a.>", "--defaults")
    wanted = {
        "max_consumers": ("--max-consumers", "3", 3),
        "max_msgs": ("--max-msgs", "100", 100),
        "max_bytes": ("--max-bytes", "1MB", 1 << 20),
        "max_msgs_per_subject": ("--max-msgs-per-subject", "9", 9),
        "max_msg_size": ("--max-msg-size", "1K", 1024),
        "compression": ("--compression", "s2", "s2"),
        "discard": ("--discard", "new", "new"),
        "first_seq": ("--first-sequence", "10", 10),
        "subject_delete_marker_ttl": ("--subject-del-markers-ttl", "1m", 60_000_000_000),
    }
    flags = {
        "allow_atomic": "--allow-batch",
        "allow_batched": "--allow-fast",
        "allow_rollup_hdrs": "--allow-rollup",
        "deny_delete": "--deny-delete",
        "allow_msg_ttl": "--allow-msg-ttl",
        "no_ack": "--no-ack",
        "discard_new_per_subject": "--discard-per-subject",
    }
    words = [word for option, value, _ in wanted.values() for word in (option, value)]
    ran = run(
        *("stream", "add", "B", "--subjects", "b.>,c.*", "--json", *words, *flags.values()),
        *("--transform-source", "b.>", "--transform-destination", "x.>"),
        *("--republish-source", "x.>", "--republish-destination", "copy.>", "--republish-headers"),
        *("--source", "A", "--no-allow-direct", "--limit-consumer-inactive", "1h"),
    )
    config = ran.json["config"]
    assert config["subjects"] == ["b.>", "c.*"]
    assert {key: config[key] for key in wanted} == {key: value for key, (_, _, value) in wanted.items()}
    assert [key for key in flags if not config[key]] == []
    assert config["subject_transform"] == {"src": "b.>", "dest": "x.>"}
    assert config["republish"] == {"src": "x.>", "dest": "copy.>", "headers_only": True}
    assert config["sources"] == [{"name": "A"}]
    assert config["allow_direct"] is False
    ran = run("stream", "add", "C", "--subjects", "c2.>", "--allow-schedules", "--json")
    assert ran.json["config"]["allow_msg_schedules"]
    ran = run("stream", "add", "D", "--subjects", "d", "--allow-counter", "--json")
    assert ran.json["config"]["allow_msg_counter"]
    assert config["consumer_limits"]["inactive_threshold"] == 3_600_000_000_000
    page = run("stream", "info", "B").out
    assert "Subject Transform: b.> to x.>" in page and "Source: A" in page


def test_a_mirror_is_created_and_made_a_stream_of_its_own(run: CommandLine) -> None:
    run("stream", "add", "A", "--subjects", "a", "--defaults")
    run("stream", "add", "M", "--mirror", '{"name": "A", "filter_subject": "a"}')
    assert run("stream", "info", "M", "--json").json["config"]["mirror"]["filter_subject"] == "a"
    assert "Mirror: A" in run("stream", "info", "M").out
    assert run("stream", "find", "--mirrored", "-n").out == "M\n"
    assert run("stream", "find", "--mirrored", "--invert", "-n").out == "A\n"


def test_a_configuration_is_written_checked_and_read(run: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    run("stream", "add", "A", "--subjects", "a", "--max-age", "1h", "--output", str(file))
    assert json.loads(file.read_text())["max_age"] == 3_600_000_000_000
    assert run("stream", "ls", "-n").out == ""
    assert "valid" in run("stream", "add", "--config", str(file), "--validate").out
    run("stream", "add", "--config", str(file), "--max-msgs", "5")
    config = run("stream", "info", "A", "--json").json["config"]
    assert (config["max_age"], config["max_msgs"]) == (3_600_000_000_000, 5)
    file.write_text(json.dumps({"name": "B", "subjects": ["b"], "max_mgs": 5}))
    assert "'max_mgs'; did you mean 'max_msgs'?" in run.refused(
        "stream", "add", "--config", str(file), status=2
    )
    file.write_text("[")
    assert "JSON object" in run.refused("stream", "add", "--config", str(file), status=2)


def test_an_edit_says_what_it_changes(run: CommandLine) -> None:
    run("stream", "add", "A", "--subjects", "a", "--max-msgs", "5", "--defaults")
    dry = run("stream", "edit", "A", "--max-msgs", "7", "--dry-run")
    assert "max_msgs is 7, was 5" in dry.err
    assert run("stream", "info", "A", "--json").json["config"]["max_msgs"] == 5
    assert "give --force" in run.run("stream", "edit", "A", "--max-msgs", "7").err
    run("stream", "edit", "A", "--max-msgs", "7", "--subjects", "a,b", "-f")
    config = run("stream", "info", "A", "--json").json["config"]
    assert (config["max_msgs"], config["subjects"]) == (7, ["a", "b"])
    assert "nothing differs" in run("stream", "edit", "A", "--max-msgs", "7", "-f").err


def test_messages_are_viewed_fetched_and_removed(run: CommandLine) -> None:
    run("stream", "add", "A", "--subjects", "a.>", "--defaults")
    for number in range(25):
        run("pub", f"a.{number % 2}", f"message {number + 1}", "-H", "N:1")
    assert "message 3\n" in run("stream", "get", "A", "3").out
    assert run("stream", "get", "A", "--last-for", "a.1", "--raw").out == "message 24"
    got = run("stream", "get", "A", "3", "--json").json
    assert (got["subject"], got["seq"], got["headers"]) == ("a.0", 3, {"N": ["1"]})
    viewed = run("stream", "view", "A", "--subject", "a.1", "--raw").out.split()
    assert viewed[1::2] == [str(number) for number in range(2, 25, 2)]
    assert run("stream", "view", "A", "--id", "24", "--raw").out == "message 24\nmessage 25\n"
    assert run("stream", "view", "A", "4", "--limit", "6", "--raw").out.count("message") == 6
    assert run("stream", "view", "A", "--since", "1h", "--json").out.count('"seq"') == 25
    assert run("stream", "get", "A", "1", "--translate", "tr a-z A-Z").out.count("MESSAGE 1") == 1
    run("stream", "rmm", "A", "3", "-f")
    run("stream", "rmm", "A", "4", "-f")
    assert run("stream", "gaps", "A", "--json").json["gaps"] == [{"first": 3, "last": 4}]
    assert "no message found" in run.refused("stream", "get", "A", "3")
    assert "--last-for" in run.refused("stream", "get", "A", status=2)
    assert run("stream", "info", "A", "--json").json["state"]["consumer_count"] == 0


def test_reports_list_streams_and_subjects(run: CommandLine) -> None:
    run("stream", "add", "A", "--subjects", "a.>", "--defaults")
    run("stream", "add", "B", "--subjects", "b", "--storage", "memory", "--defaults")
    run("pub", "a.x", "1", "--count", "3")
    run("pub", "a.y", "1")
    assert run("stream", "ls", "-n").out == "A\nB\n"
    assert run("stream", "ls", "-n", "--subject", "a.x").out == "A\n"
    assert [one["config"]["name"] for one in run("stream", "ls", "--json").json] == ["A", "B"]
    assert "│ A " in run("stream", "ls").out
    assert run("stream", "subjects", "A", "--json").json == {"a.x": 3, "a.y": 1}
    assert run("stream", "subjects", "A", "a.y", "--names").out == "a.y\n"
    assert run("stream", "subjects", "A", "--sort", "name", "-R", "--names").out == "a.y\na.x\n"
    assert run("stream", "state", "A").rows["Messages"] == "4"
    assert run("stream", "state", "A", "--json").json["messages"] == 4
    report = run("stream", "report", "-m").out
    assert report.index("│ A ") < report.index("│ B ")
    assert run("stream", "find", "--empty", "-n").out == "B\n"
    assert run("stream", "find", "--empty", "--invert", "-n").out == "A\n"
    assert run("stream", "find", "--idle", "1h", "-n", "--created", "0").out in ("", "B\n")
    assert run("stream", "copy", "A", "C", "--subjects", "c").rows["Subjects"] == "c"


def test_purge_removes_what_the_options_say(run: CommandLine) -> None:
    run("stream", "add", "A", "--subjects", "a.>", "--defaults")
    run("pub", "a.x", "1", "--count", "6")
    run("pub", "a.y", "1", "--count", "2")
    assert run("stream", "purge", "A", "-f", "--subject", "a.y", "--json").json["purged"] == 2
    assert run("stream", "purge", "A", "-f", "--seq", "3", "--json").json["purged"] == 2
    assert run("stream", "purge", "A", "-f", "--keep", "1", "--json").json["purged"] == 3
    assert run("stream", "purge", "A", "-f").rows["Messages"] == "0"


def test_a_sealed_stream_refuses_changes(run: CommandLine) -> None:
    run("stream", "add", "A", "--subjects", "a", "--defaults")
    assert run("stream", "seal", "A", "-f").rows["Sealed"] == "true"
    assert "sealed" in run.refused("stream", "purge", "A", "-f")


def test_a_backup_is_restored_with_its_consumers(run: CommandLine, tmp_path: Path) -> None:
    run("stream", "add", "A", "--subjects", "a.>", "--defaults")
    run("pub", "a.x", "x" * 10_000, "--count", "300")
    run("stream", "backup", "A", str(tmp_path / "backup"))
    assert json.loads((tmp_path / "backup/backup.json").read_text())["state"]["messages"] == 300
    assert "has a backup already" in run.refused("stream", "backup", "A", str(tmp_path / "backup"))
    run("stream", "rm", "A", "-f")
    assert "300 messages" in run("stream", "restore", str(tmp_path / "backup"), "--description", "again").out
    assert run("stream", "info", "A", "--json").json["config"]["description"] == "again"
    assert len(run("stream", "get", "A", "300", "--raw").out) == 10_000
    assert "is no backup" in run.refused("stream", "restore", str(tmp_path))


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["stream", "info", "NONE"], 1, "stream not found"),
        (["stream", "rm", "NONE", "-f"], 1, "stream not found"),
        (["stream", "rm", "A"], 2, "give --force"),
        (["stream", "add"], 2, "stream is missing"),
        (["stream", "add", "B"], 2, "--subjects is missing"),
        (["stream", "add", "B.C", "--subjects", "b"], 2, "B.C"),
        (["stream", "add", "B", "--subjects", "b", "--storage", "disk"], 2, "one of file, memory"),
        (["stream", "add", "B", "--subjects", "a"], 1, "'A'"),
        (["stream", "add", "A", "--subjects", "x"], 1, "already in use"),
        (["stream", "add", "B", "--subjects", "b", "--max-age", "5"], 2, "30s, 5m"),
        (["stream", "add", "B", "--subjects", "b", "--transform-source", "b"], 2, "--transform-destination"),
        (["stream", "info"], 2, "stream is missing; it is one of A"),
        (["stream", "cluster", "step-down", "A"], 1, "one replica"),
        (["stream", "cluster", "peer-remove", "A", "x", "-f"], 1, "one replica"),
        (["stream", "get", "A", "7"], 1, "no message found"),
        (["stream", "view", "NONE"], 1, "stream not found"),
        (["stream", "infos", "A"], 2, "did you mean 'info'"),
        (["stream", "find", "--server-name", "x", "--idle", "soon"], 2, "not a duration"),
    ],
)
def test_what_fails_is_said_in_one_line(run: CommandLine, words: list[str], status: int, text: str) -> None:
    run("stream", "add", "A", "--subjects", "a", "--defaults")
    assert text in run.refused(*words, status=status)

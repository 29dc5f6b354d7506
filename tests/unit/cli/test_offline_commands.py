"""Commands that need no server: help of every command, completion, man pages, schemas, mappings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.framework.command_run import shared_options
from penstock.cli.framework.command_table import Command
from penstock.cli.main import main
from penstock.cli.offline.completion import candidates
from penstock.cli.offline.event_schemas import check_document, schema_of, schema_types
from penstock.cli.offline.manuals import all_commands, escaped, manual
from penstock.cli.registry import REGISTRY

COMMANDS = dict(all_commands())


def run(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main(list(words))
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.mark.parametrize("words", COMMANDS)
def test_help_names_every_argument_and_option(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(*words.split()[1:], "--help", capsys=capsys)
    assert (status, err) == (0, "")
    command = COMMANDS[words]
    assert out.startswith(f"Usage: {words} [options]")
    options = [*command.options, *(one for _, group in shared_options(command) for one in group)]
    for name in [option.names[0] for option in options if not option.hidden]:
        assert name in out or name.replace("--", "--[no-]", 1) in out
    assert [one.name for one in command.arguments if one.name not in out] == []
    assert max(map(len, out.split("\n"))) <= 120


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_is_declared_without_contradictions(words: str) -> None:
    command = COMMANDS[words]
    options = [*command.options, *(one for _, group in shared_options(command) for one in group)]
    names = [name for option in options for name, _ in option.spellings()]
    assert sorted(names) == sorted(set(names)), "an option is declared twice"
    keys = [option.key for option in options] + [argument.name for argument in command.arguments]
    assert sorted(keys) == sorted(set(keys)), "two values have one name"
    assert command.summary.endswith(".")
    assert [one.names for one in options if not one.help or one.help.endswith(".")] == []


def test_the_list_of_commands_has_each_once(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run("--help", capsys=capsys)
    assert status == 0
    for one in REGISTRY:
        assert out.count(f"    {one.name} ") == bool(one.section)
    names = [name for one in REGISTRY for name in (one.name, *one.aliases)]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["steam"], 2, "unknown command 'steam'; did you mean 'stream'?"),
        (["--server", "x"], 2, "options stand behind it"),
        (["stream"], 2, ""),
        (
            ["stream", "cluster", "stepdwn"],
            2,
            "penstock stream cluster: unknown command 'stepdwn'; did you mean",
        ),
        (["help", "stream", "add"], 0, ""),
        (["stream", "help"], 0, ""),
    ],
)
def test_words_that_are_no_command(
    words: list[str], status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, out, err = run(*words, capsys=capsys)
    assert found == status
    assert text in err
    assert bool(out) == (not err)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["str"], ["stream"]),
        (["stream", "pu"], ["purge"]),
        (["con", "cluster", ""], ["--help", "balance", "peer-remove", "step-down"]),
        (["stream", "add", "X", "--stor"], ["--storage"]),
        (["stream", "add", "X", "--storage", ""], ["file", "memory"]),
        (["stream", "add", "--storage=me"], ["--storage=memory"]),
        (["completion", ""], ["bash", "fish", "zsh"]),
        (["serve", "--cluster_n"], ["--cluster_name"]),
        (["nothing", ""], []),
        (["stream", "nothing", ""], []),
        (["pub", "--no-temp"], ["--no-templates"]),
    ],
)
def test_words_are_completed(words: list[str], expected: list[str]) -> None:
    found = candidates(words)
    assert [one for one in found if one in expected] == expected
    if expected and expected != ["file", "memory"]:
        assert found == expected


def test_names_of_contexts_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nats/context").mkdir(parents=True)
    (tmp_path / "nats/context/work.json").write_text("{}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert candidates(["rtt", "--context", "w"]) == ["work"]


def test_man_pages_are_written_for_all_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run("man", str(tmp_path / "man"), capsys=capsys)
    assert (status, out) == (0, f"wrote {len(COMMANDS)} man pages to {tmp_path / 'man'}\n")
    page = (tmp_path / "man/penstock-stream-add.1").read_text()
    assert page.startswith('.TH "PENSTOCK\\-STREAM\\-ADD" 1')
    assert "\\fB\\-\\-subjects=SUBJECTS ...\\fR" in page


def test_roff_takes_texts_as_they_are() -> None:
    assert escaped(".x\\y-z\n'q") == "\\&.x\\ey\\-z\n\\&'q"
    assert isinstance(COMMANDS["penstock stream add"], Command)
    assert ".SH EXAMPLES" in manual("penstock stream add", COMMANDS["penstock stream add"])


@pytest.mark.feature("cli.offline")
def test_schemas_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    kind = "io.nats.jetstream.advisory.v1.max_deliver"
    _, out, _ = run("schema", "info", kind, capsys=capsys)
    shown = json.loads(out)
    assert shown["title"] == kind
    assert set(shown["required"]) == {
        *("type", "id", "timestamp"),
        *("stream", "consumer", "stream_seq", "deliveries"),
    }
    _, out, _ = run("schema", "ls", "max_del", "--json", capsys=capsys)
    assert list(json.loads(out)) == [kind]
    status, _, err = run("schema", "info", "io.nats.jetstream.advisory.v1.max_delivery", capsys=capsys)
    assert status == 1 and f"did you mean '{kind}'?" in err


@pytest.mark.feature("cli.offline")
@pytest.mark.parametrize("kind", schema_types())
def test_every_schema_can_be_shown(kind: str) -> None:
    assert schema_of(kind)["title"] == kind
    assert check_document(kind, b"[]")


@pytest.mark.feature("cli.offline")
def test_documents_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind = "io.nats.jetstream.advisory.v1.nak"
    document = {"type": kind, "id": "x", "timestamp": "2026-11-23T15:20:34Z", "stream": "S", "consumer": "C"}
    file = tmp_path / "nak.json"
    file.write_text(json.dumps({**document, "consumer_seq": 1, "stream_seq": 1, "deliveries": 1}))
    assert run("schema", "validate", kind, str(file), capsys=capsys)[0] == 0
    file.write_text(json.dumps({**document, "consumer_seq": "1", "stream_seq": 1, "deliveries": 1}))
    status, _, err = run("schema", "validate", kind, str(file), capsys=capsys)
    assert status == 1 and "$.consumer_seq" in err
    assert run("schema", "validate", kind, str(tmp_path / "none"), capsys=capsys)[0] == 1


@pytest.mark.feature("cli.offline")
@pytest.mark.parametrize("command", [["mapping"], ["server", "mapping"]])
def test_mappings_are_tried_as_in_the_documents(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    destination = "foo.{{wildcard(1)}}.{{wildcard(2)}}.{{partition(5,1,2)}}"
    status, out, _ = run(*command, "foo.*.*", destination, "foo.us.customerid", capsys=capsys)
    assert (status, out) == (0, "foo.us.customerid.0\n")  # as the official command line says
    assert run(*command, "foo.*", "bar.{{wildcard(1)}}", capsys=capsys)[0] == 0
    status, _, err = run(*command, "foo.*", "bar.$1", "x.y", capsys=capsys)
    assert status == 1 and "does not match" in err
    assert run(*command, "foo.*", "bar.{{wildcard(3)}}", "foo.x", capsys=capsys)[0] == 2

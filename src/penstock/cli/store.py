"""`penstock store check|repair|dump DIR`: check, repair or dump the store of a stopped server.

Exit status: 0 no faults, 1 faults were found (and, by repair, repaired), 2 failure: no store, store in use,
wrong key, disk error, or faults that could not be repaired.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import run_app
from penstock.errors import PenstockError
from penstock.store.keys import StoreKey
from penstock.store.store_check import REPLICA, StoreChecker, StoreReport

if TYPE_CHECKING:
    from penstock.kernels.log.stream_log import StoredRecord

EXIT_SOUND, EXIT_FOUND, EXIT_COULD_NOT = 0, 1, 2

_NS = 1_000_000_000

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Check, repair or dump a store that no server uses."
)

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The store directory: what the server has as -sd or store_dir.")
]
Key = Annotated[
    str, typer.Option("--key", envvar="PENSTOCK_STORE_KEY", help="The key of an encrypted store.")
]
PrevKey = Annotated[str, typer.Option("--prev-key", help="The key before it, if the server has one still.")]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", help="A nats.conf that names the keys instead.")
]


def store(words: list[str]) -> int:
    """Run `penstock store ...` and return the exit status."""
    return run_app(app, words, "penstock store", misused=EXIT_COULD_NOT)


@app.command()
def check(directory: Directory, key: Key = "", prev_key: PrevKey = "", config: Config = None) -> None:
    """Read every block, index, snapshot, journal and meta file; change nothing."""
    with _open_store(directory, key, prev_key, config) as checker:
        report = checker.check()
        _show(report, directory, repaired=False)
        raise typer.Exit(EXIT_FOUND if report.faults else EXIT_SOUND)


@app.command()
def repair(directory: Directory, key: Key = "", prev_key: PrevKey = "", config: Config = None) -> None:
    """Check and repair; deletes nothing (see DIR/lost+found)."""
    with _open_store(directory, key, prev_key, config) as checker:
        report = checker.repair(datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ"))
        _show(report, directory, repaired=True)
        if any(not fault.done for fault in report.faults):
            raise typer.Exit(EXIT_COULD_NOT)
        raise typer.Exit(EXIT_FOUND if report.faults else EXIT_SOUND)


@app.command()
def dump(
    directory: Directory,
    key: Key = "",
    prev_key: PrevKey = "",
    config: Config = None,
    stream: Annotated[str, typer.Option(help="This stream alone.")] = "",
    account: Annotated[str, typer.Option(help="Streams of this account alone.")] = "",
    subject: Annotated[str, typer.Option(help="Messages with this subject alone; wildcards allowed.")] = "",
    from_seq: Annotated[int, typer.Option(help="From this sequence on.")] = 1,
    to_seq: Annotated[int, typer.Option(help="Up to this sequence; 0: all.")] = 0,
) -> None:
    """Print messages as JSON lines; report unreadable ones on standard error."""
    unreadable: list[str] = []

    def lost(text: str) -> None:
        unreadable.append(text)
        sys.stderr.write(f"{text}\n")

    with _open_store(directory, key, prev_key, config) as checker:
        wanted = [
            (of, name, at)
            for of, name, at in checker.streams()
            if stream in ("", name) and account in ("", of)
        ]  # fmt: skip
        if not wanted and (stream or account):
            _fail(f"{directory} has no such stream; it has {_named(checker)}")
        for of, name, at in wanted:
            messages = checker.messages(
                at, subject=subject.encode(), from_seq=from_seq, to_seq=to_seq, on_lost=lost
            )
            for message in messages:
                sys.stdout.write(json.dumps(_line(of, name, message), ensure_ascii=False) + "\n")
    raise typer.Exit(EXIT_FOUND if unreadable else EXIT_SOUND)


def _named(checker: StoreChecker) -> str:
    return ", ".join(f"{name} (account {of})" for of, name, _ in checker.streams()) or "none"


def _line(account: str, stream: str, message: StoredRecord) -> dict[str, Any]:
    """One message as JSON. Binary fields are base64, with the suffix _base64 in their name."""
    seconds, ns = divmod(message.ts, _NS)
    line: dict[str, Any] = {
        "account": account,
        "stream": stream,
        "seq": message.seq,
        "time": f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ns:09d}Z",
        "subject": message.subject.decode("utf-8", "backslashreplace"),
    }
    for name, data in (("header", message.header), ("payload", message.payload)):
        if name == "header" and not data:
            continue
        try:
            line[name] = data.decode()
        except UnicodeDecodeError:
            line[f"{name}_base64"] = base64.b64encode(data).decode()
    return line


# ---------------------------------------------------------------------- opening and reporting


@contextmanager
def _open_store(directory: Path, key: str, prev_key: str, config: Path | None) -> Iterator[StoreChecker]:
    try:
        checker = StoreChecker(directory, _keys(key, prev_key, config))
        try:
            yield checker
        finally:
            checker.close()
    except (PenstockError, OSError) as error:
        _fail(str(error))


def _keys(key: str, prev_key: str, config: Path | None) -> StoreKey:
    if config is None:
        return StoreKey(key=key, prev_key=prev_key)
    from penstock.server.config.directives import load

    jetstream = load(str(config)).jetstream
    if jetstream is None:
        return StoreKey(key=key, prev_key=prev_key)
    return StoreKey(jetstream.cipher, key or jetstream.key, prev_key or jetstream.prev_key)


def _fail(text: str) -> None:
    sys.stderr.write(f"penstock store: {text}\n")
    raise typer.Exit(EXIT_COULD_NOT)


def _show(report: StoreReport, directory: Path, *, repaired: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 1000)
    streams = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("account", "stream"):
        streams.add_column(name)
    for name in ("messages", "bytes", "first", "last", "blocks", "consumers"):
        streams.add_column(name, justify="right")
    for one in report.streams:
        counts = (one.messages, one.bytes, one.first_seq, one.last_seq, one.blocks, len(one.consumers))
        shown = ("-" if one.is_replica else f"{count:,}" for count in counts)
        streams.add_row(escape(one.account), escape(one.name), *shown)
    console.print(streams)
    for one in report.streams:
        if one.is_replica:
            console.print(f"{escape(one.name)} (account {escape(one.account)}): {REPLICA}", soft_wrap=True)
    for finding in report.findings:
        colour = "green" if finding.done else "red" if finding.fault else "yellow"
        at = "" if finding.offset is None else f" at byte {finding.offset}"
        console.print(f"[{colour}]{escape(str(finding.path))}[/]{at}: {escape(finding.what)}", soft_wrap=True)
        if finding.done:
            console.print(f"    repaired: {escape(finding.done)}", soft_wrap=True)
        elif repaired and finding.fault:
            console.print("    left as it is", soft_wrap=True)
    faults = len(report.faults)
    if report.moved_to is not None:
        console.print(f"What left its place is in {escape(str(report.moved_to))}", soft_wrap=True)
    if not faults:
        console.print(f"[green]{escape(str(directory))}: sound[/]", soft_wrap=True)
    elif repaired:
        done = sum(bool(one.done) for one in report.faults)
        console.print(f"{faults} found, {done} repaired", soft_wrap=True)
    else:
        console.print(f"{faults} found; `penstock store repair {escape(str(directory))}`", soft_wrap=True)

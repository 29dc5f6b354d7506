"""`penstock pipeline archive|replay|dead-letters|stats ...`: the pipelines between streams and Spark.

Exit status: 0 success, 1 failure (with a message), 2 wrong usage.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import run_app
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

    from penstock.spark.pipelines.report import PipelineReport

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Pipelines between streams and Spark.")

Stream = Annotated[str, typer.Argument(help="The stream.")]
Servers = Annotated[
    str, typer.Option("--server", "--servers", "-s", envvar="NATS_URL", help="Addresses of servers.")
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An option of format jetstream, name=value; may be repeated."),
]
ReportFile = Annotated[Path | None, typer.Option("--report", help="Write what was done as an HTML page.")]
Master = Annotated[str, typer.Option(help="Where Spark runs.")]
Format = Annotated[str, typer.Option("--format", help="Of the archive: parquet, delta or iceberg.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--conf", help="A setting of Spark, name=value; may be repeated."),
]

_SERVERS = "nats://127.0.0.1:4222"
_MASTER = "local[*]"


def pipeline(words: list[str]) -> int:
    """Run `penstock pipeline ...` and return the exit status."""
    try:
        return run_app(app, words, "penstock pipeline", misused=2)
    except PenstockError as error:
        sys.stderr.write(f"penstock pipeline: {error}\n")
        return 1


@app.command()
def archive(
    stream: Stream,
    path: Annotated[str, typer.Argument(help="The archive's folder, or for iceberg the table.")],
    servers: Servers = _SERVERS,
    option: Options = None,
    table_format: Format = "parquet",
    conf: Settings = None,
    range_records: Annotated[int, typer.Option(help="Sequences archived and verified at once.")] = 1_000_000,
    purge: Annotated[bool, typer.Option(help="Remove from the stream what is archived.")] = False,
    force: Annotated[bool, typer.Option(help="Purge though consumers are behind.")] = False,
    report: ReportFile = None,
    master: Master = _MASTER,
) -> None:
    """Archive a stream to Parquet, Delta or Iceberg: incremental, verified, with optional purge."""
    from penstock.spark.pipelines.archive import archive as run

    with _spark(master, _settings(conf, table_format, path)) as (spark, console):
        done = run(
            spark, stream, path, _options(servers, option),
            format=table_format, range_records=range_records, purge=purge, force=force, console=console,
        )  # fmt: skip
        facts = {
            "stream": done.stream, "archive": done.path, "ranges": len(done.entries), "messages": done.rows,
            "bytes": done.bytes, "purged": done.purged, "ranges of failed runs removed": done.strays,
        }  # fmt: skip
        page = None
        if report is not None:
            page = _report(f"Archive of {stream}").facts(facts)
            page.bars(
                "Messages by range",
                [f"{entry.start:,}-{entry.end - 1:,}" for entry in done.entries],
                [entry.totals.rows for entry in done.entries],
                "messages",
            )
        _finish(facts, page, report)


@app.command()
def replay(
    path: Annotated[str, typer.Argument(help="The archive's folder, or for iceberg the table.")],
    stream: Stream,
    servers: Servers = _SERVERS,
    option: Options = None,
    table_format: Format = "parquet",
    conf: Settings = None,
    subject: Annotated[str | None, typer.Option(help="A template of subjects; default: their own.")] = None,
    where: Annotated[str | None, typer.Option(help="Which messages: SQL over subject, seq, time ...")] = None,
    parallel: Annotated[bool, typer.Option(help="Several tasks write; the order is kept in each.")] = False,
    report: ReportFile = None,
    master: Master = _MASTER,
) -> None:
    """Write an archive to a stream; repeated runs store each message once."""
    from penstock.spark.pipelines.replay import replay as run

    with _spark(master, _settings(conf, table_format, path)) as (spark, _console):
        done = run(
            spark, path, stream, _options(servers, option),
            format=table_format, subject=subject, where=where, parallel=parallel,
        )  # fmt: skip
        facts = {"archive": path, "stream": stream, "messages": done.rows}
        _finish(facts, _report(f"Replay into {stream}").facts(facts), report)


@app.command("dead-letters")
def dead_letters(
    stream: Stream,
    servers: Servers = _SERVERS,
    option: Options = None,
    redrive: Annotated[bool, typer.Option(help="Publish them to their subjects again.")] = False,
    remove: Annotated[bool, typer.Option(help="Delete those that were published again.")] = False,
    where: Annotated[str | None, typer.Option(help="Which ones: SQL over consumer, reason ...")] = None,
    report: ReportFile = None,
    master: Master = _MASTER,
) -> None:
    """Inspect a stream of dead letters, and publish them again."""
    from penstock.spark.pipelines.dead_letter_tools import analyse
    from penstock.spark.pipelines.dead_letter_tools import redrive as run

    options = _options(servers, option)
    if (remove or where) and not redrive:
        raise typer.BadParameter("--remove and --where are for --redrive")
    with _spark(master) as (spark, console):
        found = {name: table.toPandas() for name, table in analyse(spark, stream, options).items()}
        for name in ("by_reason", "by_subject"):
            _print(found[name].to_string(index=False) if len(found[name]) else f"{name}: none")
        facts: dict[str, object] = {
            "stream": stream,
            "dead letters": int(found["by_reason"]["messages"].sum()),
        }
        if redrive:
            done = run(spark, stream, options, where=where, remove=remove, console=console)
            facts |= {"re-driven": sum(done.messages.values()), "removed": done.removed}
        page = None
        if report is not None:
            page = _report(f"Dead letters in {stream}").facts(facts)
            page.table("By reason", found["by_reason"]).table("By subject", found["by_subject"])
            hours = found["by_hour"]
            page.bars("By hour", [str(hour) for hour in hours["hour"]], list(hours["messages"]), "messages")
        _finish(facts, page, report)


@app.command()
def stats(
    stream: Stream,
    servers: Servers = _SERVERS,
    option: Options = None,
    window: Annotated[str, typer.Option(help="Width of the rates: '10 seconds', '1 hour'.")] = "1 minute",
    top: Annotated[int, typer.Option(help="How many subjects.")] = 20,
    latency_header: Annotated[str | None, typer.Option(help="Header with the time of sending.")] = None,
    report: ReportFile = None,
    master: Master = _MASTER,
) -> None:
    """Rates, top subjects, gaps and latencies of a stream."""
    from penstock.spark.pipelines.stats import statistics

    with _spark(master) as (spark, _console):
        found = statistics(
            spark, stream, _options(servers, option), window=window, top=top, latency_header=latency_header
        )
        totals = found.totals.collect()[0].asDict()
        tables = {"Top subjects": found.subjects.toPandas(), "Gaps": found.gaps.toPandas()}
        if found.latencies is not None:
            tables["Latency, ms"] = found.latencies.toPandas()
        for name, table in tables.items():
            _print(name)
            _print(table.to_string(index=False) if len(table) else "none")
        facts = {"stream": stream, **totals}
        page = None
        if report is not None:
            rates = found.rates.toPandas()
            page = _report(f"What went through {stream}").facts(facts)
            page.line(f"Messages in {window}", list(rates["start"]), list(rates["messages"]), "messages")
            page.line(f"Bytes in {window}", list(rates["start"]), list(rates["bytes"]), "bytes")
            subjects = tables["Top subjects"]
            page.bars("Top subjects", list(subjects["subject"]), list(subjects["messages"]), "messages")
            for name, table in tables.items():
                page.table(name, table)
        _finish(facts, page, report)


@app.command()
def enrich(
    stream: Stream,
    into: Annotated[str, typer.Argument(help="The stream the pairs go to.")],
    left: Annotated[str, typer.Option(help="Subject filter, key field, time field: 'dep.>,id,at'.")],
    right: Annotated[str, typer.Option(help="The same for the other side.")],
    subject: Annotated[str, typer.Option(help="A template of the pairs' subjects: 'pairs.{key}'.")],
    checkpoint: Annotated[str, typer.Option(help="A folder that remembers how far it is.")],
    servers: Servers = _SERVERS,
    option: Options = None,
    within: Annotated[str, typer.Option(help="How far a pair's times may be apart.")] = "1 day",
    late: Annotated[str, typer.Option(help="How long to wait for what comes out of order.")] = "1 hour",
    outer: Annotated[bool, typer.Option(help="Also what has no partner on the right.")] = False,
    report: ReportFile = None,
    master: Master = _MASTER,
) -> None:
    """Join two kinds of messages into a third stream; waits for late messages."""
    from penstock.spark.pipelines.enrich import JoinSide
    from penstock.spark.pipelines.enrich import enrich as run

    sides = []
    for text in (left, right):
        parts = [part.strip() for part in text.split(",")]
        if len(parts) != 3 or not all(parts):
            raise typer.BadParameter(f"{text!r}: write a subject filter, a key field, a time field")
        sides.append(JoinSide(*parts))
    with _spark(master) as (spark, _console):
        done = run(
            spark, stream, into, _options(servers, option), left=sides[0], right=sides[1], subject=subject,
            checkpoint=checkpoint, within=within, late=late, outer=outer,
        )  # fmt: skip
        facts = {
            "stream": stream, "into": into, "micro-batches": done.batches, "messages read": done.read,
            "too late to be joined": done.late,
        }  # fmt: skip
        _finish(facts, _report(f"{stream} into {into}").facts(facts), report)


def _options(servers: str, given: list[str] | None) -> dict[str, str]:
    return {"servers": servers, **_pairs(given)}


def _settings(given: list[str] | None, table_format: str, where: str) -> dict[str, str]:
    """Spark's settings for a format: those given, and what the format always needs but its jar."""
    from penstock.spark.pipelines.lake_tables import settings_of

    return settings_of(table_format, where, _pairs(given))


def _pairs(given: list[str] | None) -> dict[str, str]:
    found = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is no option: write name=value")
        found[name] = value
    return found


def _report(title: str) -> PipelineReport:
    from penstock.spark.pipelines.report import PipelineReport

    return PipelineReport(title)


@contextmanager
def _spark(master: str, settings: Mapping[str, str] | None = None) -> Iterator[tuple[SparkSession, Console]]:
    """A Spark session, and a console on stderr for progress. Does not stop or change an existing session."""
    from pyspark.sql import SparkSession
    from rich.console import Console

    from penstock.spark import ensure_java, ensure_spark

    console = Console(stderr=True)
    there = SparkSession.getActiveSession()
    if there is not None:
        yield there, console
        return
    if master.startswith("local"):
        ensure_spark()
    else:
        ensure_java()
    console.print("starting Spark …")
    builder = SparkSession.builder.master(master).appName("penstock pipeline")
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark, console
    finally:
        spark.stop()


def _print(text: str) -> None:
    """Print a result. Results go to stdout, so that they can be piped; progress goes to stderr."""
    sys.stdout.write(f"{text}\n")


def _finish(facts: dict[str, object], page: PipelineReport | None, report: Path | None) -> None:
    for name, value in facts.items():
        _print(f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value}")
    if page is not None and report is not None:
        _print(f"written: {page.write(report)}")

"""`make bench`: compares penstock with the official server, interleaved; medians and ratios, also as JSON.

Both servers run as separate processes with file storage on the same disk. Every scenario runs `--rounds`
times, once against each server per round, so that other load on the machine affects both. A ratio above 1 is
better for penstock.

`--before CHECKOUT` compares with the penstock of another checkout instead, whose kernels are built: the rows
of the server, each with the ratio of the CPU time that both needed for the same work. Other load changes that
ratio less than the one of rates, and the median of each round's ratio ("of pairs") less than the ratio of
medians.

`--fresh` starts the server again for each measurement, and measures its second run of the scenario. Two
processes of the same code can differ by a tenth for as long as they live, by where their memory lies: without
`--fresh`, a row with many rounds still compares two such processes. Not for rows that prepare millions of
messages once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import batches
import bystander
import clients
import consumers
import core_clients
import links
import load
import replicas
import streams
import sync_clients
from kafka_table import kafka_rows
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rows import Row, Scenario, is_wanted
from servers import ROOT, ServerProcess, cpu_s, official_server, penstock_server, two_checkouts
from spark import spark_rows

FILL_MESSAGES = 300_000
RECOVERY_MESSAGES = 1_000_000
CORE_BYTES = 256 * 1024 * 1024
IDLE_CONNECTIONS = 10_000
IDLE_SUBSCRIPTIONS = 100_000
IDLE_MAX_MIB = 1024
SPREAD_SUBJECTS = 100_000
SPREAD_COST_MAX = 1.5
IDLE_CONSUMERS = 1000
IDLE_CONSUMERS_COST_MAX = 1.2
ACTIVE_CONSUMERS = 100
SHARED_MESSAGES = 10_000
SHARED_SPREAD_MAX = 1.5
WIDE_MESSAGES = 10_000_000
NUM_PENDING_MAX_MS = 50
FILTER_COST_MAX = 2
WAITING_FILTERS = 100
BEFORE_GOAL = 0.97


def start_time_ms(server: ServerProcess) -> float:
    server.stop()
    took_s = server.start()
    return took_s * 1e3


def memory_at_rest_mib(server: ServerProcess) -> float:
    server.stop()
    server.start()
    with load.wire(server.port):
        return server.resident_mib()


def recovery_ms(server: ServerProcess) -> float:
    """SIGKILL, then the time from exec until STREAM.INFO shows all messages."""
    import time

    server.stop(signal.SIGKILL)
    started = time.perf_counter()
    server.start()
    server.until_jetstream_answers("RECOVER", RECOVERY_MESSAGES)
    return (time.perf_counter() - started) * 1e3


def idle(server: ServerProcess) -> tuple[float, float]:
    """(MiB, set-up seconds) of a new server with idle connections."""
    server.stop()
    server.start()
    with load.idle_connections(
        server.port, connections=IDLE_CONNECTIONS, subscriptions=IDLE_SUBSCRIPTIONS
    ) as set_up_s:
        return server.resident_mib(), set_up_s


def spread_cost(server: ServerProcess) -> float:
    """The cost of a publish to one of very many subjects, as a multiple of one to one of ten."""
    few = load.spread_msgs_per_s(server.port, subjects=10, messages=1_000_000)
    return few / spread_rate(server)


def fixed_cost(server: ServerProcess) -> float:
    """The cost of a publish to one subject with very many subscribed, as a multiple of that with ten."""
    few = load.spread_msgs_per_s(server.port, subjects=10, used=1, messages=1_000_000)
    return few / fixed_rate(server)


def spread_rate(server: ServerProcess) -> float:
    """Publishes to very many subjects in random order; messages per second."""
    return load.spread_msgs_per_s(server.port, subjects=SPREAD_SUBJECTS, messages=1_000_000)


def fixed_rate(server: ServerProcess) -> float:
    """Publishes to one subject with very many subscribed; messages per second."""
    return load.spread_msgs_per_s(server.port, subjects=SPREAD_SUBJECTS, used=1, messages=1_000_000)


def core_scenarios(share: int) -> list[Scenario]:
    """Publish and subscribe one to one, one to four, four to four, and request/reply, in four sizes."""
    rows = []
    for size, label in ((16, "16 B"), (128, "128 B"), (4096, "4 KiB"), (65536, "64 KiB")):
        messages = min(1_000_000, CORE_BYTES // size) // share
        for publishers, subscribers in ((1, 1), (1, 4), (4, 4)):

            def flow(
                server: ServerProcess,
                publishers: int = publishers,
                subscribers: int = subscribers,
                messages: int = messages // subscribers,
                size: int = size,
            ) -> float:
                return load.core_msgs_per_s(
                    server.port,
                    messages=messages,
                    publishers=publishers,
                    subscribers=subscribers,
                    size_bytes=size,
                )

            rows.append(
                Scenario(f"core {publishers}:{subscribers}, {label}", "msg/s published", flow, goal=1.0)
            )

        def latency(server: ServerProcess, size: int = size) -> float:
            return load.request_reply_median_us(server.port, requests=5_000 // share, size_bytes=size)

        def throughput(server: ServerProcess, size: int = size) -> float:
            requests = max(20_000, min(100_000, CORE_BYTES // size)) // share
            return load.requests_per_s(server.port, requests=requests, in_flight=50, size_bytes=size)

        rows.append(
            Scenario(f"request/reply, 1 in flight, {label}", "us", latency, bigger_is_better=False, goal=1.0)
        )
        rows.append(Scenario(f"request/reply, 50 in flight, {label}", "replies/s", throughput, goal=1.0))
    return rows


def scenarios(quick: bool) -> list[Scenario]:
    share = 5 if quick else 1

    def consumer_run(server: ServerProcess, messages: int) -> load.ConsumerRun:
        return load.ConsumerRun(server.port, messages)

    return [
        *core_scenarios(share),
        Scenario(
            f"publish to the same one of {SPREAD_SUBJECTS:,} subjects, beside one of 10",
            "times the cost",
            fixed_cost,
            bigger_is_better=False,
            most=SPREAD_COST_MAX,
            rate=fixed_rate,
        ),
        Scenario(
            f"publish to {SPREAD_SUBJECTS:,} subjects in random order, beside 10",
            "times the cost",
            spread_cost,
            bigger_is_better=False,
            most=SPREAD_COST_MAX,
            rate=spread_rate,
        ),
        Scenario(
            "acked publish, 1 in flight, file",
            "acks/s",
            lambda s: load.acked_publishes_per_s(s.port, messages=10_000 // share, window=1),
        ),
        Scenario(
            "ordered consumer, 128 B",
            "msg/s",
            lambda s: load.ordered_consumer_msgs_per_s(consumer_run(s, FILL_MESSAGES)),
            goal=2.0,
        ),
        Scenario(
            "pull fetch 500, explicit acks",
            "msg/s",
            lambda s: load.fetch_msgs_per_s(consumer_run(s, FILL_MESSAGES // 3 // share)),
            goal=2.0,
        ),
        Scenario(
            "pull consume, explicit acks",
            "msg/s",
            lambda s: consumers.consume_msgs_per_s(consumer_run(s, FILL_MESSAGES // share)),
            goal=2.0,
        ),
        *many_consumers(share, WIDE_MESSAGES // 10 if quick else WIDE_MESSAGES),
        *batch_rows(share),
    ]


def batch_rows(share: int) -> list[Scenario]:
    """Rows about atomic batches and fast ingest."""
    return [
        Scenario(
            "atomic batches of 500, 128 B, file",
            "msg/s",
            lambda s: batches.atomic_msgs_per_s(s.port, batches=1000 // share),
            goal=5.0,
        ),
        Scenario(
            "fast ingest, one publisher, 128 B, file",
            "msg/s",
            lambda s: batches.fast_msgs_per_s(s.port, messages=1_000_000 // share),
            goal=5.0,
        ),
        Scenario(
            f"fast ingest, one publisher's rate by that of {batches.PUBLISHERS} together",
            "times",
            lambda s: 1 / batches.many_by_one(s.port, messages_each=150_000 // share),
            bigger_is_better=False,
            most=1.0,
        ),
        Scenario(
            f"fast ingest, {batches.PUBLISHERS} publishers: most stored by one, by the least",
            "times",
            lambda s: batches.shared_fast(s.port, messages_each=150_000 // share)[1],
            bigger_is_better=False,
            most=1.2,
        ),
        Scenario(
            f"info, purge, delete beside {batches.PUBLISHERS} fast publishers: the slowest p99",
            "ms",
            lambda s: max(batches.request_p99_ms(s.port, requests=500 // share).values()),
            bigger_is_better=False,
            most=100,
        ),
    ]


def fast_ingest_synced(server: ServerProcess) -> float:
    """Fast ingest where penstock, but not the official server, syncs before each ack; messages per second."""
    server.stop()
    if server.is_penstock:
        conf = server.store_dir.parent / "synced.conf"
        conf.write_text("jetstream { sync_interval: always }\n")
        server.more = ("-c", str(conf))
    try:
        server.start()
        return batches.fast_msgs_per_s(server.port, messages=500_000)
    finally:
        server.stop()
        server.more = ()


def many_consumers(share: int, wide: int) -> list[Scenario]:
    """Rows about many consumers, and about filters over a million subjects."""
    return [
        Scenario(
            f"ingest beside {IDLE_CONSUMERS:,} idle consumers, beside none",
            "times the cost",
            lambda s: consumers.idle_consumers_cost(
                s.port, consumers=IDLE_CONSUMERS, messages=200_000 // share
            ),
            bigger_is_better=False,
            most=IDLE_CONSUMERS_COST_MAX,
        ),
        Scenario(
            f"{ACTIVE_CONSUMERS} active consumers: most delivered to one, by the least",
            "times",
            lambda s: consumers.spread_of_counts(
                s.port, consumers=ACTIVE_CONSUMERS, messages=SHARED_MESSAGES
            ),
            bigger_is_better=False,
            most=SHARED_SPREAD_MAX,
        ),
        Scenario(
            f"num_pending of a filter, {wide:,} messages",
            "ms",
            lambda s: consumers.num_pending_ms(s.port, messages=wide),
            bigger_is_better=False,
            most=NUM_PENDING_MAX_MS,
        ),
        Scenario(
            f"ingest beside {WAITING_FILTERS} waiting consumers with other filters, beside none",
            "times the cost",
            lambda s: consumers.filters_ingest_cost(
                s.port, consumers=WAITING_FILTERS, messages=200_000 // share
            ),
            bigger_is_better=False,
            most=IDLE_CONSUMERS_COST_MAX,
        ),
        *(
            Scenario(
                f"delivery through {what}, 1 M subjects, beside no filter",
                "times the cost",
                lambda s, subject=subject, wanted=wide // part: consumers.filter_cost(  # type: ignore[misc]
                    s.port, subject, messages=wide, wanted=wanted
                ),
                bigger_is_better=False,
                most=FILTER_COST_MAX,
                rate=lambda s, subject=subject, wanted=wide // part: (  # type: ignore[misc]
                    consumers.filtered_msgs_per_s(s.port, subject, messages=wide, wanted=wanted)
                ),
            )
            for what, subject, part in (
                ("a wildcard that takes a thousandth", "wide.*.g7.*", 1200),
                ("a wildcard that takes a twelfth", "wide.d7.>", 12),
                ("a literal that takes a thousandth", "wide.thousandth", 1000),
                ("a literal that takes a tenth", "wide.tenth", 10),
            )
        ),
    ]


def process_scenarios() -> list[Scenario]:
    """Rows that restart servers; they run last."""
    return [
        Scenario("start-up, empty store", "ms", start_time_ms, bigger_is_better=False),
        Scenario("memory at rest", "MiB", memory_at_rest_mib, bigger_is_better=False),
        Scenario(
            "fast ingest, penstock with sync_interval: always, official without",
            "msg/s",
            fast_ingest_synced,
            goal=3.0,
        ),
        Scenario(
            f"memory, {IDLE_CONNECTIONS:,} idle connections, {IDLE_SUBSCRIPTIONS:,} subscriptions",
            "MiB",
            lambda s: idle(s)[0],
            bigger_is_better=False,
            most=IDLE_MAX_MIB,
        ),
        Scenario(
            f"set-up of {IDLE_CONNECTIONS:,} connections, {IDLE_SUBSCRIPTIONS:,} subscriptions",
            "ms",
            lambda s: idle(s)[1] * 1e3,
            bigger_is_better=False,
        ),
        Scenario(
            f"recovery of {RECOVERY_MESSAGES:,} messages after SIGKILL",
            "ms",
            recovery_ms,
            bigger_is_better=False,
        ),
    ]


def measure(
    rows: list[Row],
    servers: list[ServerProcess],
    rounds: int,
    console: Console,
    done: Callable[[], None],
    *,
    fresh: bool = False,
) -> None:
    """Measures row by row. `done` is called after each one, so that what was measured outlives a failure.

    fresh: each figure is of a new process, except where a row brings servers of its own.
    """
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(rows) * rounds * len(servers))
        for count, row in enumerate(rows, 1):
            try:
                for turn in range(rounds):
                    # The first one alternates, so that a warm page cache or other load favours neither.
                    order = servers if turn % 2 == 0 else servers[::-1]
                    order = [one for one in order if one.is_penstock or not row.scenario.alone]
                    for server in map(row.scenario.instead, order):
                        progress.update(task, description=f"{row.scenario.name}: {server.name}")
                        if fresh and server in servers:
                            renew(row.scenario, server)
                        measure_once(row, server)
            except (load.LoadError, OSError) as error:  # of this row: the others still tell something
                row.failure = f"{server.name}: {error}"
                console.print(f"{row.scenario.name}: ended early, {row.failure}")
            progress.update(task, completed=count * rounds * len(servers))
            done()


def renew(scenario: Scenario, server: ServerProcess) -> None:
    """Restarts the server, and runs the scenario once: the first run also pays for memory and imports.
    Raises LoadError."""
    server.stop()
    server.start()
    server.until_jetstream_answers("FILL", FILL_MESSAGES)
    scenario.measure(server)


def measure_once(row: Row, server: ServerProcess) -> None:
    """Adds a figure of one server to the row. Raises LoadError."""
    process = server.process
    used_s = cpu_s(process.pid) if process is not None else 0.0
    row.figures.setdefault(server.name, []).append(row.scenario.measure(server))
    if process is not None and server.process is process:  # else it was restarted
        row.cpu_s.setdefault(server.name, []).append(cpu_s(process.pid) - used_s)


def format_figure(figure: float | None) -> str:
    """A figure as shown in the table; below 10 with two decimals."""
    return "-" if figure is None else f"{figure:,.2f}" if figure < 10 else f"{figure:,.0f}"


def table(rows: list[Row], rival_name: str) -> Table:
    out = Table(title=f"penstock beside {rival_name}: medians")
    out.add_column("scenario")
    out.add_column("unit")
    for name in ("penstock", rival_name, "ratio", "of pairs", "CPU ratio", "goal"):
        out.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        ours, theirs, ratio = row.median("penstock"), row.median(row.rival), row.ratio()
        rival = "" if row.rival == rival_name else f"\n{row.rival}"
        out.add_row(
            row.scenario.name,
            row.scenario.unit,
            format_figure(ours),
            format_figure(theirs) + rival,
            "-" if ratio is None else f"[{'red' if row.missed() else 'green'}]{ratio:.2f}[/]",
            format_figure(row.pair_ratio()),
            format_figure(row.cpu_ratio()),
            row.aim(),
        )
    return out


def results(rows: list[Row]) -> dict[str, object]:
    """What the JSON file has about rows."""
    return {
        row.scenario.name: {
            "unit": row.scenario.unit,
            "figures": row.figures,
            "ratio": row.ratio(),
            "pair_ratio": row.pair_ratio(),
            "cpu_s": row.cpu_s,
            "cpu_ratio": row.cpu_ratio(),
            "goal": row.scenario.goal,
            "most": row.scenario.most,
            "failure": row.failure,
        }
        for row in rows
        if row.figures
    }


def write_results(file: Path, result: dict[str, object]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=2) + "\n")


def against_before(scenarios: list[Scenario]) -> list[Scenario]:
    """The rows to compare two checkouts with: those that measure a server, each with the same goal."""
    return [_for_checkouts(one) for one in scenarios if "redis" not in one.name.lower()]


def _for_checkouts(scenario: Scenario) -> Scenario:
    if scenario.rate is not None:
        scenario = replace(
            scenario,
            name=f"{scenario.name}: rate",
            unit="msg/s",
            measure=scenario.rate,
            bigger_is_better=True,
        )
    return replace(scenario, goal=BEFORE_GOAL, most=None, enough=None)


def client_and_link_scenarios(share: int, both: clients.ClientServer, pairs: links.Pairs) -> list[Scenario]:
    """Rows about clients on the same server, and about two servers of the same kind with a link."""
    return [
        *core_clients.scenarios(share, both),
        *clients.scenarios(share, both),
        *sync_clients.scenarios(share, both),
        *links.scenarios(share, pairs),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, help="5, or 3 with --quick")
    parser.add_argument("--quick", action="store_true", help="a fifth of the messages")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="rows whose name contains this, in any case: 'spark'; may be repeated",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="TEXT",
        help="not the rows whose name contains this; may be repeated",
    )
    parser.add_argument("--fresh", action="store_true", help="each figure of a new process of the server")
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument(
        "--before", type=Path, help="a built checkout of penstock to compare with, instead of nats-server"
    )
    parser.add_argument("--json", type=Path, help="where the figures go (out/bench.json, or bench-part.json)")
    options = parser.parse_args()
    if options.json is None:
        options.json = ROOT / "out" / ("bench-part.json" if options.only else "bench.json")
    rounds = options.rounds or (3 if options.quick else 5)
    # In a file or a CI log the table has its full width.
    console = Console(width=None if sys.stdout.isatty() else 110)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=os.environ.get("TMPDIR")) as name:
        folder = Path(name)
        if options.before is not None:
            servers = two_checkouts(folder, options.before)
        else:
            servers = [s for s in (penstock_server(folder), official_server(folder)) if s is not None]
        if len(servers) == 1:
            console.print("no nats-server on PATH and no go to install it: penstock is measured alone")
        rivals = streams.Rivals(folder)
        floods = bystander.Servers(folder)
        both_clients = clients.ClientServer(folder)
        wanted = scenarios(options.quick) + streams.scenarios(5 if options.quick else 1, rivals)
        wanted += bystander.scenarios(floods)
        pairs = links.Pairs(folder)
        clusters = replicas.Clusters(folder)
        if options.before is not None:
            wanted = against_before(wanted)
        else:
            wanted += client_and_link_scenarios(5 if options.quick else 1, both_clients, pairs)
        # Last: they need the machine, and what ran before needs memory.
        replicated = replicas.scenarios(5 if options.quick else 1, clusters)
        replicated += bystander.replica_scenarios(floods, clusters)
        wanted += against_before(replicated) if options.before is not None else replicated
        rows = [Row(s) for s in wanted if is_wanted(s.name, options.only, options.without)]
        at_starts = process_scenarios()
        if options.before is not None:
            at_starts = against_before(at_starts)
        process_rows = [Row(s) for s in at_starts if is_wanted(s.name, options.only, options.without)]

        def write() -> None:
            write_results(options.json, results(rows + process_rows))

        try:
            for server in servers if rows or process_rows else ():
                server.start()
                load.fill_stream(server.port, messages=FILL_MESSAGES)
            measure(rows, servers, rounds, console, write, fresh=options.fresh)
            if process_rows:
                for server in servers:
                    load.fill_stream(server.port, messages=RECOVERY_MESSAGES, name="RECOVER")
                measure(
                    [r for r in process_rows if "recovery" in r.scenario.name],
                    servers,
                    rounds,
                    console,
                    write,
                )
                for server in servers:
                    server.stop()
                    server.store_dir = server.store_dir.with_name(server.store_dir.name + "-empty")
                measure(
                    [r for r in process_rows if "recovery" not in r.scenario.name],
                    servers,
                    rounds,
                    console,
                    write,
                )
        finally:
            rivals.stop()
            floods.stop()
            both_clients.stop()
            pairs.stop()
            clusters.stop()
            for server in servers:
                server.stop()
    rows += process_rows
    if rows:
        console.print(table(rows, servers[-1].name if len(servers) == 2 else "nats-server"))
        ceiling = batches.ceiling_msgs_per_s(messages=500_000)
        console.print(
            f"the load generator sends {ceiling:,.0f} msg/s of a fast batch to a process that only acks"
        )
    result = results(rows)
    if not options.no_spark and options.before is None:
        result |= spark_rows(options.only, options.without, console)
        result |= kafka_rows(options.only, options.without, console, quick=options.quick)
    write_results(options.json, result)
    console.print(f"written: {options.json}")


if __name__ == "__main__":
    main()

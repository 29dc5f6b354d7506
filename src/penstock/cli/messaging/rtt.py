"""`penstock rtt`: round-trip times to the servers of a connection."""

from __future__ import annotations

import time

from penstock.cli.framework.command_run import CommandRun
from penstock.cli.framework.command_table import Argument, Command, Option
from penstock.cli.framework.value_kinds import count
from penstock.cli.framework.value_texts import duration_text
from penstock.client import Client


async def _rtt(run: CommandRun) -> None:
    iterations = run.values.number("iterations") or run.values.number("count")
    measured = []
    async with run.connect() as client:
        for url in dict.fromkeys(client.servers):
            async with run.connect_to(url) as one:
                times_s = [await _round_trip_s(one) for _ in range(iterations)]
            measured.append((url, times_s))
    if run.output.as_json:
        run.output.json(
            [
                {
                    "url": url,
                    "rtt_s": sum(times_s) / len(times_s),
                    "min_s": min(times_s),
                    "max_s": max(times_s),
                }
                for url, times_s in measured
            ]
        )
        return
    for url, times_s in measured:
        run.output.line(f"{url}: {duration_text(sum(times_s) / len(times_s))}")


async def _round_trip_s(client: Client) -> float:
    # Not Client.rtt: the clock of uvloop's event loop counts milliseconds.
    started = time.perf_counter()
    await client.flush()
    return time.perf_counter() - started


RTT = Command(
    name="rtt",
    summary="Measure the round-trip time to each server of a connection.",
    run=_rtt,
    arguments=(
        Argument(name="iterations", help="Round trips to each server", convert=count, required=False),
    ),
    options=(Option(names=("--count", "-n"), convert=count, default=5, help="Round trips to each server"),),
    examples=("rtt", "rtt 10 --server nats://a:4222,nats://b:4222"),
)

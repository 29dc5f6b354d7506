"""`penstock stream graph`: what a stream stores and removes, over time."""

from __future__ import annotations

from penstock.cli.framework.command_run import CommandRun
from penstock.cli.framework.value_texts import rate_text, size_text, whole_text
from penstock.cli.reports.graph_screen import GRAPH_DETAILS, GRAPH_OPTIONS, show_graphs
from penstock.cli.reports.line_graphs import GraphSeries
from penstock.cli.streams.stream_group import STREAM, STREAM_NAME, stream_name

STREAM_SERIES = (
    GraphSeries("Messages", "messages", whole_text),
    GraphSeries("Stored", "last_seq", rate_text, rate=True),
    GraphSeries("Removed", "removed", rate_text, rate=True),
    GraphSeries("Bytes", "bytes", size_text),
)


@STREAM.command(
    "graph",
    "Draw how many messages a stream has, stores and removes, until interrupted.",
    arguments=(STREAM_NAME,),
    options=GRAPH_OPTIONS,
    details=GRAPH_DETAILS,
    examples=("stream graph ORDERS", "stream graph ORDERS --json --max-refresh 10"),
    until_interrupted=True,
)
async def graph(run: CommandRun) -> None:
    """Draw the state of a stream."""
    async with run.jetstream() as js:
        name = await stream_name(run, js)

        async def sample() -> dict[str, float]:
            state = (await js.stream_info(name)).state
            removed = state.last_seq - state.messages
            return {"messages": state.messages, "last_seq": state.last_seq, "removed": removed,
                    "bytes": state.bytes}  # fmt: skip

        await show_graphs(run, f"Stream {name}", STREAM_SERIES, sample)

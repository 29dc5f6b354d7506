"""`penstock consumer graph`: what a consumer delivers and how far it is behind, over time."""

from __future__ import annotations

from penstock.cli.consumers.consumer_group import CONSUMER, CONSUMER_NAME, consumer_info_of, consumer_names
from penstock.cli.framework.command_run import CommandRun
from penstock.cli.framework.value_texts import rate_text, whole_text
from penstock.cli.reports.graph_screen import GRAPH_DETAILS, GRAPH_OPTIONS, show_graphs
from penstock.cli.reports.line_graphs import GraphSeries
from penstock.cli.streams.stream_group import STREAM_NAME

CONSUMER_SERIES = (
    GraphSeries("Unprocessed Messages", "pending", whole_text),
    GraphSeries("Outstanding Acks", "ack_pending", whole_text),
    GraphSeries("Delivered", "delivered", rate_text, rate=True),
    GraphSeries("Acknowledged", "ack_floor", rate_text, rate=True),
)


@CONSUMER.command(
    "graph",
    "Draw what a consumer delivers, and how far it is behind, until interrupted.",
    arguments=(STREAM_NAME, CONSUMER_NAME),
    options=GRAPH_OPTIONS,
    details=GRAPH_DETAILS,
    examples=("consumer graph ORDERS NEW",),
    until_interrupted=True,
)
async def graph(run: CommandRun) -> None:
    """Draw the state of a consumer."""
    async with run.jetstream() as js:
        stream, name = await consumer_names(run, js)

        async def sample() -> dict[str, float]:
            info = await consumer_info_of(js, stream, name)
            return {"pending": info.num_pending, "ack_pending": info.num_ack_pending,
                    "delivered": info.delivered.consumer_seq,
                    "ack_floor": info.ack_floor.consumer_seq}  # fmt: skip

        await show_graphs(run, f"Consumer {stream} > {name}", CONSUMER_SERIES, sample)

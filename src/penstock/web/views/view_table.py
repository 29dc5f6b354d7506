"""All views and actions, by the name in their URL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from penstock.web.views import (
    dead_letter_views,
    message_views,
    publish_actions,
    schedule_views,
    server_views,
    spark_views,
    stream_views,
)
from penstock.web.visitor import Visitor
from penstock.web.web_ports import Slice

View = Callable[[Visitor, Mapping[str, str]], Awaitable[Slice]]


class WebAction(NamedTuple):
    """kind: type of the request's JSON body."""

    kind: type[Any]
    run: Callable[[Visitor, Any], Awaitable[Slice]]


VIEWS: dict[str, View] = {
    "overview": server_views.overview,
    "accounts": server_views.accounts,
    "connections": server_views.connections,
    "cluster": server_views.cluster,
    "streams": stream_views.streams,
    "stream": stream_views.stream,
    "messages": message_views.messages,
    "message": message_views.message,
    "dead-letters": dead_letter_views.dead_letters,
    "schedules": schedule_views.schedules,
    "spark": spark_views.spark,
}
"""What a visitor may read. Views change nothing."""

ACTIONS: dict[str, WebAction] = {
    "publish": WebAction(publish_actions.PublishRequest, publish_actions.publish),
    "replay": WebAction(dead_letter_views.ReplayRequest, dead_letter_views.replay),
    "cancel-schedule": WebAction(schedule_views.CancelRequest, schedule_views.cancel),
}
"""What changes something: with `allow_writes` only."""

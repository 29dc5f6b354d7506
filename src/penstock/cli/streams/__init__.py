"""`penstock stream ...`: streams and their messages.

`stream_group` has the group. The other modules add commands to it: stream_management (add, edit, copy,
rm, purge, seal), stream_cluster (cluster), stream_reports (ls, info, state, subjects, report, find, gaps),
stream_messages (view, get, rmm), stream_archives (backup, restore), stream_graph (graph). stream_settings
makes configurations from options; stream_pages shows them.
"""

from penstock.cli.streams import (
    stream_archives,
    stream_cluster,
    stream_graph,
    stream_management,
    stream_messages,
    stream_reports,
)
from penstock.cli.streams.stream_group import STREAM

__all__ = [
    "STREAM",
    "stream_archives",
    "stream_cluster",
    "stream_graph",
    "stream_management",
    "stream_messages",
    "stream_reports",
]

"""`penstock consumer ...`: consumers of streams.

`consumer_group` has the group. consumer_management adds `add`, `edit`, `copy`, `rm`, `pause`, `resume`,
`reset` and `unpin`; consumer_cluster `cluster`; consumer_reports `ls`, `info`, `state`, `report`, `find`;
consumer_messages `next` and `sub`; consumer_graph `graph`. consumer_settings makes configurations from
options; consumer_pages shows them.
"""

from penstock.cli.consumers import (
    consumer_cluster,
    consumer_graph,
    consumer_management,
    consumer_messages,
    consumer_reports,
)
from penstock.cli.consumers.consumer_group import CONSUMER

__all__ = [
    "CONSUMER",
    "consumer_cluster",
    "consumer_graph",
    "consumer_management",
    "consumer_messages",
    "consumer_reports",
]

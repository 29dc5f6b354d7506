"""The JetStream API: `$JS.API.>` requests to an engine.

`api_table` maps a subject to its endpoint; `service` receives requests, calls the handlers and sends
responses and audit advisories. The handlers are in `account_requests`, `stream_requests`,
`consumer_requests`, `transfer_requests` (snapshot, restore) and `direct_requests` (reads that return messages
instead of JSON). `pages` has the pages of lists.

Invariant: every request with a reply subject gets exactly one response, after what it reports was written.
"""

from penstock.jetstream.api.api_table import ApiRequest, Endpoint
from penstock.jetstream.api.service import ApiService

__all__ = ["ApiRequest", "ApiService", "Endpoint"]

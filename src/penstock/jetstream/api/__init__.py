"""The JetStream API: `$JS.API.>` requests to an engine.

`dispatch` holds the table of endpoints and the service; the other modules hold the handlers: streams,
direct (reads that bypass JSON), account, consumers.
"""

from penstock.jetstream.api.api_table import ApiRequest, Endpoint
from penstock.jetstream.api.service import ApiService

__all__ = ["ApiRequest", "ApiService", "Endpoint"]

"""Status messages: empty messages whose header's first line carries a code and a text.

Every status that pull and push consumers send. `Status.block()` is the header block to send; compare a
received status with `STATUS.code` and `STATUS.text`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.protocol import headers


class Status(NamedTuple):
    code: int
    text: str

    def block(self, pairs: Iterable[tuple[str, str]] = ()) -> bytes:
        """The header block, with optional headers after the status line."""
        return headers.build(pairs, status=self.code, description=self.text)

    def format(self, **values: object) -> Status:
        """This status with its `{placeholders}` filled in."""
        return Status(self.code, self.text.format(**values))


IDLE_HEARTBEAT = Status(100, "Idle Heartbeat")
FLOW_CONTROL = Status(100, "FlowControl Request")
NO_CONTENT = Status(204, "")
EOB = Status(204, "EOB")

BAD_REQUEST = Status(400, "Bad Request")
HEARTBEAT_TOO_LARGE = Status(400, "Bad Request - heartbeat value too large")
PRIORITY_GROUP_MISSING = Status(400, "Bad Request - Priority Group missing")
INVALID_PRIORITY_GROUP = Status(400, "Bad Request - Invalid Priority Group")
NOT_OVERFLOW_CONSUMER = Status(400, "Bad Request - Not a Overflow Priority consumer")
NOT_PINNED_CONSUMER = Status(400, "Bad Request - Not a Pinned Client Priority consumer")
PRIORITY_OUT_OF_RANGE = Status(400, "Bad Request - Priority must be between 0 and 9")

NO_MESSAGES = Status(404, "No Messages")
MESSAGE_NOT_FOUND = Status(404, "Message Not Found")
NO_RESULTS = Status(404, "No Results")

REQUEST_TIMEOUT = Status(408, "Request Timeout")
INTEREST_EXPIRED = Status(408, "Interest Expired")
REQUESTS_PENDING = Status(408, "Requests Pending")
EMPTY_REQUEST = Status(408, "Empty Request")
NO_INTEREST = Status(408, "No Interest")
NO_FLOW_RESPONSE = Status(408, "No Flow Response")
MALFORMED_REQUEST = Status(408, "Malformed Request")
DIRECT_BAD_REQUEST = Status(408, "Bad Request")

MESSAGE_SIZE_EXCEEDS_MAX_BYTES = Status(409, "Message Size Exceeds MaxBytes")
BATCH_COMPLETED = Status(409, "Batch Completed")
SERVER_SHUTDOWN = Status(409, "Server Shutdown")
EXCEEDED_MAX_REQUEST_BATCH = Status(409, "Exceeded MaxRequestBatch of {limit}")
EXCEEDED_MAX_REQUEST_EXPIRES = Status(409, "Exceeded MaxRequestExpires of {limit}")
EXCEEDED_MAX_REQUEST_MAX_BYTES = Status(409, "Exceeded MaxRequestMaxBytes of {limit}")
EXCEEDED_MAX_WAITING = Status(409, "Exceeded MaxWaiting")
CONSUMER_DELETED = Status(409, "Consumer Deleted")
CONSUMER_IS_PUSH_BASED = Status(409, "Consumer is push based")
LEADERSHIP_CHANGE = Status(409, "Leadership Change")

REQUIRED_API_LEVEL = Status(412, "Required Api Level")
TOO_MANY_RESULTS = Status(413, "Too Many Results")
WRONG_PIN_ID = Status(423, "Nats-Wrong-Pin-Id")
PIN_ID_MISMATCH = Status(423, "Nats-Pin-Id mismatch")
TOO_MANY_REQUESTS = Status(429, "Too Many Requests")
NO_RESPONDERS = Status(503, "")


def no_responders_block(subject: str) -> bytes:
    """The header block of the 503 reply to a request without responders."""
    return NO_RESPONDERS.block([(headers.SUBJECT, subject)])

"""Status messages."""

from __future__ import annotations

from penstock.protocol import headers, status


def test_a_status_is_a_header_block_with_its_line() -> None:
    block = status.REQUEST_TIMEOUT.block([(headers.PENDING_MESSAGES, "3"), (headers.PENDING_BYTES, "0")])
    assert block == (
        b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\nNats-Pending-Bytes: 0\r\n\r\n"
    )
    assert headers.status_of(block) == tuple(status.REQUEST_TIMEOUT)


def test_limits_are_filled_into_the_text() -> None:
    assert status.EXCEEDED_MAX_REQUEST_BATCH.format(limit=10).text == "Exceeded MaxRequestBatch of 10"


def test_no_responders_names_the_subject_and_has_no_text() -> None:
    assert status.no_responders_block("a.b") == b"NATS/1.0 503\r\nNats-Subject: a.b\r\n\r\n"

"""Atomic batches (ADR-50): messages that are stored together, with consecutive sequences, or not at all.

    async with js.atomic_batch() as batch:
        await batch.add("users.7.street", b"Main St 1")
        await batch.add("users.7.city", b"Springfield")
        ack = await batch.commit("users.7.zip", b"12345")

The server stages the messages and stores them on commit. A lost message, or an expectation that does not hold
at commit, rejects the whole batch. The client rejects what every server would reject (a misplaced
expectation, a repeated message id) before it sends the message, so that a mistake does not cost the batch.
Leaving the block by an exception abandons the batch: the server discards it.

Messages are sent without waiting, except the first one (`ack_first`, the default: it tells whether the stream
accepts batches before the rest is sent) and every `ack_every`th one.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from penstock.client.client_session import FLUSH_BYTES
from penstock.client.message import Payload, RawMessage, encode_payload
from penstock.client.payloads import Payloads, runs_of
from penstock.client.publishing import PublishOptions, encode_publish_headers
from penstock.client.requests import new_nuid
from penstock.errors import (
    DisconnectedError,
    MaxPayloadError,
    MisuseError,
    NoRespondersError,
    NoStreamError,
    PublishNotAckedError,
    RequestTimeoutError,
)
from penstock.protocol import headers
from penstock.protocol.api import DecodeError, PubAck
from penstock.protocol.batch import batch_exception, check_batch_id, parse_answer

if TYPE_CHECKING:
    from penstock.client.client_session import ClientSession

SEQUENCE_SPACE = 24  # bytes reserved in a header block for the batch sequence and the end of the block
COMMIT = "1"
COMMIT_EOB = "eob"


class AtomicBatch:
    """Created by `JetStream.atomic_batch`. Use it in `async with` and end it with `commit` or `commit_eob`.

    id: the batch id. size: messages added so far.
    """

    def __init__(
        self, session: ClientSession, *, ack_first: bool, ack_every: int, timeout: float, batch_id: str | None
    ) -> None:
        if ack_every < 0:
            raise MisuseError(f"ack_every is {ack_every}; it is a number of messages, 0 for never")
        self.id = check_batch_id(batch_id) if batch_id is not None else new_nuid()
        self.size = 0
        self._session = session
        self._ack_first = ack_first
        self._ack_every = ack_every
        self._timeout_s = timeout
        self._seq = 0
        # A message without options has this header block, followed by its sequence and the end.
        self._block = f"NATS/1.0\r\n{headers.BATCH_ID}: {self.id}\r\n{headers.BATCH_SEQUENCE}: ".encode()
        self._subject = b""
        self._ids: set[str] = set()
        self._subjects: set[str] = set()
        self._entered = False
        self._done = False

    async def add(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        ack: bool | None = None,
        **options: Unpack[PublishOptions],
    ) -> None:
        """Add a message.

        ack: whether to wait for the server's ack; None decides by `ack_first` and `ack_every`. Raises
        MisuseError for what no server would accept. If it waits for an ack, also raises the JetStreamApiError
        the stream answers (BatchNotEnabledError, BatchIncompleteError, ...), NoStreamError and
        PublishNotAckedError.
        """
        self._check(subject, options)
        encoded = self._session.encode_subject(subject)
        header = self._header(options, self._seq + 1)
        body = encode_payload(payload)
        self._check_size(header, body)
        self._record(subject, encoded, options)
        self.size += 1
        if ack if ack is not None else self._is_ack_due():
            raw = await self._request(encoded, header, body, subject)
            if raw[4]:
                self._done = True
                raise self._refusal(raw, subject)
        else:
            await self._session.publish(encoded, None, header, body)

    async def add_many(self, payloads: Iterable[bytes] | Any, subject: str) -> None:
        """Add many messages to one subject, encoded in compiled code.

        payloads: an iterable of bytes, or an Arrow array or chunked array of binary or string type (without
        nulls). Waits only for the ack of the batch's first message (`ack_first`). Raises what `add` raises;
        messages before a payload that is too large are sent.
        """
        self._check(subject, {})
        encoded = self._session.encode_subject(subject)
        for run in runs_of(payloads):
            at = 0
            if not self._seq and len(run):
                await self.add(subject, run[0])
                at = 1
            while at < len(run):
                at += await self._add_some(subject, encoded, run, at)

    async def _add_some(self, subject: str, encoded: bytes, run: Payloads, at: int) -> int:
        """Encode messages until the out buffer is full. Returns how many."""
        session = self._session
        await session.until_connected()
        size_max = session.max_payload - len(self._block) - SEQUENCE_SPACE
        wrote = run.encode(
            session.out, encoded, self._block, self._seq + 1, at, len(run) - at, size_max, staged=True
        )
        if wrote:
            self._seq += wrote
            self.size += wrote
            self._subject = self._subject or encoded
            self._subjects.add(subject)
            session.schedule_flush()
        elif session.out.size < FLUSH_BYTES:
            raise MaxPayloadError(len(run[at]), size_max)
        if session.out.size >= FLUSH_BYTES:
            await session.flush_output()
        return wrote

    async def commit(self, subject: str, payload: Payload = b"", **options: Unpack[PublishOptions]) -> PubAck:
        """Add a last message and store the batch.

        Returns the pub ack: `seq` of the last message, `batch` and `count`. The other messages have the
        preceding sequences. Raises the JetStreamApiError that rejects the batch (WrongLastSequenceError,
        BatchIncompleteError, ...), and PublishNotAckedError without an answer: either the whole batch is
        stored or nothing.
        """
        self._check(subject, options)
        encoded = self._session.encode_subject(subject)
        header = self._header(options, self._seq + 1, COMMIT)
        body = encode_payload(payload)
        self._check_size(header, body)
        self._record(subject, encoded, options)
        self.size += 1
        return await self._end(encoded, header, body, subject)

    async def commit_eob(self) -> PubAck:
        """Store the messages added so far. Raises what `commit` raises, MisuseError for an empty batch."""
        self._check_open()
        if not self._seq:
            raise MisuseError("nothing was added: there is no batch to commit")
        header = self._header({}, self._seq + 1, COMMIT_EOB)
        return await self._end(self._subject, header, b"", self._subject.decode("utf-8", "replace"))

    def abort(self) -> None:
        """Abandon the batch. Nothing is stored; the server discards it after a timeout."""
        self._done = True

    async def __aenter__(self) -> AtomicBatch:
        if self._entered:
            raise MisuseError("this batch is in use already; make another by js.atomic_batch()")
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Abandon the batch if the block raised. Raises MisuseError if it was not committed or aborted."""
        forgotten = kind is None and not self._done and self._seq > 0
        self._done = True
        if forgotten:
            raise MisuseError("the batch was neither committed nor aborted: nothing of it is stored")

    # --- local checks --------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._entered:
            raise MisuseError("a batch works inside of `async with js.atomic_batch() as batch`")
        if self._done:
            raise MisuseError("the batch has ended; make another by js.atomic_batch()")

    def _check(self, subject: str, options: PublishOptions) -> None:
        self._check_open()
        if options.get("expected_last_msg_id") is not None:
            raise MisuseError("expected_last_msg_id can't be used in an atomic batch")
        if options.get("expected_last_sequence") is not None and self._seq:
            raise MisuseError("expected_last_sequence can only be asked for by the first message of a batch")
        expected = options.get("expected_last_subject_sequence")
        of_subject = options.get("expected_last_subject_sequence_subject")
        if of_subject is not None and expected is None:
            raise MisuseError("expected_last_subject_sequence_subject needs expected_last_subject_sequence")
        if expected is not None and (of_subject or subject) in self._subjects:
            text = (
                f"{of_subject or subject!r} is written earlier in this batch: its sequence can't be expected"
            )
            raise MisuseError(text)
        msg_id = options.get("msg_id")
        if msg_id is not None and msg_id in self._ids:
            raise MisuseError(f"msg_id {msg_id!r} is in this batch already")

    def _check_size(self, header: bytes, body: bytes) -> None:
        size = len(header) + len(body)
        if size > self._session.max_payload:
            raise MaxPayloadError(size, self._session.max_payload)

    def _record(self, subject: str, encoded: bytes, options: PublishOptions) -> None:
        self._seq += 1
        self._subject = self._subject or encoded
        self._subjects.add(subject)
        msg_id = options.get("msg_id")
        if msg_id is not None:
            self._ids.add(msg_id)

    # --- the wire ------------------------------------------------------------------------------

    def _header(self, options: PublishOptions, seq: int, commit: str = "") -> bytes:
        if options:
            block = encode_publish_headers(options)
            block = headers.with_value(block, headers.BATCH_ID, self.id)
            block = headers.with_value(block, headers.BATCH_SEQUENCE, str(seq))
        else:
            block = b"%b%d\r\n\r\n" % (self._block, seq)
        return headers.with_value(block, headers.BATCH_COMMIT, commit) if commit else block

    def _is_ack_due(self) -> bool:
        if self._seq == 1:
            return self._ack_first
        return bool(self._ack_every) and self._seq % self._ack_every == 0

    async def _request(self, subject: bytes, header: bytes, body: bytes, text: str) -> RawMessage:
        try:
            return await self._session.request(subject, header, body, self._timeout_s)
        except NoRespondersError as error:
            self._done = True
            raise NoStreamError(text) from error
        except (RequestTimeoutError, DisconnectedError) as error:
            self._done = True
            raise PublishNotAckedError(f"atomic batch {self.id}: no answer on {text!r}: {error}") from error

    async def _end(self, subject: bytes, header: bytes, body: bytes, text: str) -> PubAck:
        raw = await self._request(subject, header, body, text)
        self._done = True
        try:
            answer = parse_answer(raw[4])
        except DecodeError as error:
            raise PublishNotAckedError(f"atomic batch {self.id}: {raw[4][:80]!r} is no pub ack") from error
        if isinstance(answer, PubAck) and answer.error is None:
            return answer
        raise self._refusal(raw, text)

    def _refusal(self, raw: RawMessage, subject: str) -> Exception:
        try:
            answer = parse_answer(raw[4])
        except DecodeError:
            answer = None
        if isinstance(answer, PubAck) and answer.error is not None:
            return batch_exception(answer.error, subject)
        return PublishNotAckedError(f"atomic batch {self.id}: unexpected answer {raw[4][:80]!r}")

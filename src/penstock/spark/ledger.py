"""What a task finds out about an earlier try of itself: where it began to write, and what it stored.

A server drops duplicates within the stream's duplicate window, two minutes as a rule. A query that is
started again after a longer outage repeats its last micro-batch beyond that. So each task notes, before its
first row, at which sequence of the stream it begins, in a key-value bucket under
`<query>.<stream>.<partition>`; the note is written only if nobody wrote one meanwhile. A task that finds a
note of its own micro-batch was run before: it reads the ids of what the stream holds from there on, and
leaves those rows out.

Two tries at the same time both find the note or make it, read what is there, and what they still send twice
arrives within the window.

What the stream held when the task first looked at it is all the ledger has to know: a note may say too low a
sequence, only not one behind the task's first row; and what another try stores from then on is within the
window.

Invariants: a note's micro-batch never goes back; there is one key for a partition, so the bucket stays small.
What it can't see is what the stream no longer holds: messages consumed off a work queue, or expired.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock import errors
from penstock.protocol import api
from penstock.protocol import headers as names
from penstock.spark.arrow import Buffers
from penstock.spark.last_message import last_message
from penstock.spark.offsets import SequenceRange
from penstock.spark.range_sessions import bounds_of
from penstock.spark.reader import RangeReader
from penstock.spark.reconnecting import ReconnectingConnection
from penstock.spark.sink_options import SinkOptions
from penstock.spark.source_options import SourceOptions
from penstock.spark.task_identity import Marker, TaskIdentity
from penstock.spark.wire import BlockingConnection

TRIES = 5


class Ledger:
    """`info`: of the stream that is written to, from before the task's first row."""

    def __init__(
        self,
        options: SinkOptions,
        link: ReconnectingConnection,
        identity: TaskIdentity,
        info: api.StreamInfoResponse,
    ) -> None:
        assert options.ledger is not None
        self.options = options
        self.link = link
        self.identity = identity
        self.bounds = bounds_of(options.stream, info)
        self.num_replicas = max(1, info.config.num_replicas)
        self.bucket = f"KV_{options.ledger}"
        self.subject = f"$KV.{options.ledger}.{identity.query}.{options.stream}.{identity.partition}"

    def stored_ids(self) -> frozenset[bytes]:
        """Notes where this task begins; ids of what an earlier try of it stored, empty on the first one.

        Raises MisuseError when a later micro-batch was written, and what the connection raises."""
        began = self.link.ask(self._begin)
        if began is None:
            return frozenset()
        bounds = self.bounds
        if began.created != bounds.created:
            return frozenset()  # the stream was made anew: nothing of ours is in it
        start = max(began.next, bounds.first_seq)
        return self._ids(SequenceRange(bounds.name, bounds.created, start, bounds.last_seq + 1))

    def _begin(self, connection: BlockingConnection) -> Marker | None:
        """The note of an earlier try, or None after writing one."""
        for _ in range(TRIES):
            try:
                found = last_message(connection, self.bucket, self.subject)
            except errors.StreamNotFoundError:
                self._make_bucket(connection)
                continue
            seq = 0
            if found is not None:
                note = Marker.decode(found.data, self.subject)
                self.identity.check(note.epoch, f"its entry {self.subject!r} in the ledger")
                if note.epoch == self.identity.epoch:
                    return note
                seq = found.seq
            note = Marker(self.identity.epoch, self.bounds.last_seq + 1, self.bounds.created)
            if self._write(connection, note, seq):
                return None
        raise errors.JetStreamError(
            f"the ledger's entry {self.subject!r} was changed by others {TRIES} times while this task wrote "
            "it: is one checkpoint used by two queries?"
        )

    def _write(self, connection: BlockingConnection, note: Marker, expected: int) -> bool:
        """False when somebody else wrote meanwhile."""
        block = f"NATS/1.0\r\n{names.EXPECTED_LAST_SUBJECT_SEQUENCE}: {expected}\r\n\r\n".encode()
        answer = connection.request(self.subject, note.encode(), header=block)
        try:
            api.decode_response(api.PubAck, answer, request=self.subject)
        except errors.WrongLastSequenceError:
            return False
        return True

    def _make_bucket(self, connection: BlockingConnection) -> None:
        config = api.StreamConfig(
            name=self.bucket,
            subjects=[f"$KV.{self.options.ledger}.>"],
            max_msgs_per_subject=1,
            max_msgs=-1, max_bytes=-1, max_consumers=-1, max_msg_size=-1,
            discard=api.DiscardPolicy.NEW,
            num_replicas=self.num_replicas,
            allow_rollup_hdrs=True, deny_delete=True, allow_direct=True,
        )  # fmt: skip
        try:
            connection.api(api.StreamCreateResponse, f"STREAM.CREATE.{self.bucket}", config)
        except errors.AlreadyExistsError:
            pass  # another task was faster
        except (errors.PermissionsError, errors.JetStreamApiError) as error:
            raise errors.ConfigError(
                f"the ledger {self.options.ledger!r} is not there and can't be made ({error}): create this "
                "key-value bucket, name another by option 'ledger', or say `none` to rely on the stream's "
                "duplicate window"
            ) from error

    def _ids(self, span: SequenceRange) -> frozenset[bytes]:
        """The message ids in `span`: those of this task, all when the user makes them."""
        if span.end <= span.start:
            return frozenset()
        options = SourceOptions(connection=self.options.connection, streams=(span.stream,))
        found: set[bytes] = set()
        for rows, buffers in RangeReader(options, span, ["headers"]).batches():
            found.update(_message_ids(rows, buffers))
        if self.options.message_id is not None:
            return frozenset(found)
        prefix = self.identity.id_prefix
        return frozenset(found_id for found_id in found if found_id.startswith(prefix))


def _message_ids(rows: int, buffers: Buffers) -> list[bytes]:
    """The values of Nats-Msg-Id in the kernel's buffers of a batch's headers."""
    _, name_offsets, header_names, list_offsets, value_offsets, values = (
        pa.py_buffer(b) for b in buffers["headers"]
    )
    entries = name_offsets.size // 4 - 1
    items = value_offsets.size // 4 - 1
    keys = pa.Array.from_buffers(pa.binary(), entries, [None, name_offsets, header_names])
    texts = pa.Array.from_buffers(pa.binary(), items, [None, value_offsets, values])
    lists = pa.Array.from_buffers(pa.list_(pa.binary()), entries, [None, list_offsets], children=[texts])
    return pc.list_flatten(lists.filter(pc.equal(keys, names.MSG_ID.encode()))).to_pylist()

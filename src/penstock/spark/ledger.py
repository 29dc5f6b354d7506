"""Finds the rows that an earlier attempt of a task stored, beyond the duplicate window.

A server drops duplicates within the stream's duplicate window, two minutes by default. A query restarted
after a longer outage repeats its last micro-batch outside of it. Therefore each task records, before its
first row, the stream sequence at which it begins, in a key-value bucket under
`<query>.<stream>.<partition>`. The entry is written with the expected last sequence of the subject
(compare-and-set). A task that finds an entry of its own micro-batch has run before: it reads the message ids
stored from that sequence on and skips those rows.

Two concurrent attempts both find or write the entry and read the same ids. What they then send twice arrives
within the duplicate window.

The entry may name a sequence that is too low, never one after the task's first row: it is taken from the
stream's state before that row. What another attempt stores later is covered by the duplicate window.

Invariants: the micro-batch of an entry never decreases; there is one key per partition, so the bucket stays
small. The ledger cannot see messages that the stream no longer holds, such as expired ones or those consumed
from a work queue.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock import errors
from penstock.protocol import api
from penstock.protocol import headers as names
from penstock.protocol.arrow_columns import Buffers
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
    """The ledger of one task.

    info: stream info of the target, requested before the task's first row.
    """

    def __init__(
        self,
        options: SinkOptions,
        connection: ReconnectingConnection,
        identity: TaskIdentity,
        info: api.StreamInfoResponse,
    ) -> None:
        assert options.ledger is not None
        self.options = options
        self.connection = connection
        self.identity = identity
        self.bounds = bounds_of(options.stream, info)
        self.num_replicas = max(1, info.config.num_replicas)
        self.bucket = f"KV_{options.ledger}"
        self.subject = f"$KV.{options.ledger}.{identity.query}.{options.stream}.{identity.partition}"

    def stored_ids(self) -> frozenset[bytes]:
        """Record where this task begins. Returns the message ids an earlier attempt stored, if any.

        Raises MisuseError if a later micro-batch was written, and what the connection raises.
        """
        began = self.connection.call(self._begin)
        if began is None:
            return frozenset()
        bounds = self.bounds
        if began.created != bounds.created:
            return frozenset()  # the stream was recreated: it holds none of our rows
        start = max(began.next, bounds.first_seq)
        return self._ids(SequenceRange(bounds.name, bounds.created, start, bounds.last_seq + 1))

    def _begin(self, connection: BlockingConnection) -> Marker | None:
        """The entry of an earlier attempt, or None after writing one."""
        for _ in range(TRIES):
            try:
                found = connection.last_message(self.bucket, self.subject)
            except errors.StreamNotFoundError:
                self._create_bucket(connection)
                continue
            seq = 0
            if found is not None:
                marker = Marker.decode(found.data, self.subject)
                self.identity.check(marker.epoch, f"its entry {self.subject!r} in the ledger")
                if marker.epoch == self.identity.epoch:
                    return marker
                seq = found.seq
            marker = Marker(self.identity.epoch, self.bounds.last_seq + 1, self.bounds.created)
            if self._write(connection, marker, seq):
                return None
        raise errors.JetStreamError(
            f"the ledger's entry {self.subject!r} was changed by others {TRIES} times while this task wrote "
            "it: is one checkpoint used by two queries?"
        )

    def _write(self, connection: BlockingConnection, marker: Marker, expected: int) -> bool:
        """Write the entry if its last sequence is `expected`; False if another writer was faster."""
        block = f"NATS/1.0\r\n{names.EXPECTED_LAST_SUBJECT_SEQUENCE}: {expected}\r\n\r\n".encode()
        answer = connection.publish(self.bucket, self.subject, marker.encode(), block)
        try:
            api.decode_response(api.PubAck, answer, request=self.subject)
        except errors.WrongLastSequenceError:
            return False
        return True

    def _create_bucket(self, connection: BlockingConnection) -> None:
        config = api.ApiStreamConfig(
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
            pass  # another task created it
        except (errors.PermissionsError, errors.JetStreamApiError) as error:
            raise errors.ConfigError(
                f"the ledger {self.options.ledger!r} is not there and can't be made ({error}): create this "
                "key-value bucket, name another by option 'ledger', or say `none` to rely on the stream's "
                "duplicate window"
            ) from error

    def _ids(self, span: SequenceRange) -> frozenset[bytes]:
        """The message ids stored in `span`: this task's, or all of them with option `messageId`."""
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
    """The Nats-Msg-Id values in a batch's header buffers."""
    _, name_offsets, header_names, list_offsets, value_offsets, values = (
        pa.py_buffer(b) for b in buffers["headers"]
    )
    entries = name_offsets.size // 4 - 1
    items = value_offsets.size // 4 - 1
    keys = pa.Array.from_buffers(pa.binary(), entries, [None, name_offsets, header_names])
    texts = pa.Array.from_buffers(pa.binary(), items, [None, value_offsets, values])
    lists = pa.Array.from_buffers(pa.list_(pa.binary()), entries, [None, list_offsets], children=[texts])
    return pc.list_flatten(lists.filter(pc.equal(keys, names.MSG_ID.encode()))).to_pylist()

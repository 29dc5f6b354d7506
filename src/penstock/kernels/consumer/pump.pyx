"""Delivery of a consumer's messages to its receivers.

A Pump moves messages from the StreamLog to receivers: run() finds the next message, writes its ack
subject, delivers it to the next target (endpoints.pyx) and enters it in the AckState. It creates no Python object
per message.

Invariants: a message enters the AckState only after a sink accepted it, so that lost interest never counts
as a delivery. `position` moves only past messages that were delivered or removed. Redeliveries come before new
messages. The log does not change during run().

The number of pending messages is part of every ack subject. It is counted once and then updated: with
filters, by notifications of appended and removed messages; without, by the number of appended messages, and it is
counted again only after a removal of messages not yet delivered.

Rejected: sizing runs by time.
"""
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from penstock.kernels.base.memory cimport array_new
from penstock.kernels.consumer.ack_state cimport ACK_NONE, AckState
from penstock.kernels.wire.output cimport OutBuffer, put_uint
from penstock.kernels.log.filter_cursor cimport FilterCursor
from penstock.kernels.log.records cimport Record
from penstock.kernels.wire.sinks cimport Message
from penstock.kernels.log.stream_log cimport StreamLog
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex
from penstock.kernels.consumer.endpoints cimport END_NO_INTEREST, Rotation, Target

cdef enum:
    NUMBER_MAX = 20             # digits of a 64 bit number
    ACK_NUMBERS = 5             # <deliveries>.<stream seq>.<consumer seq>.<ts>.<pending>
    MSG_SIZE_LINE_MAX = 40      # "Nats-Msg-Size: " and a number
    PARKED_MAX = 100000                 # messages that may wait for their key
    REPLAY_PAUSE_MIN_NS = 1000000       # shorter pauses between stored messages are not replayed

cdef bytes MSG_SIZE_HEADER = b"Nats-Msg-Size: "
cdef bytes VERSION_LINE = b"NATS/1.0\r\n"


cdef int add_header(OutBuffer out, const Message* m, const char* line, size_t n, Message* made) except -1:
    """Sets `made` (which may be m) to the message with one more header line, of n bytes without CRLF. `out` owns its
    bytes."""
    cdef size_t header_len = m.header_len, payload_len = m.body_len - m.header_len
    cdef const char* header = m.body
    cdef char* d
    cdef char* end
    if header_len < 4:
        header = PyBytes_AS_STRING(VERSION_LINE)
        header_len = <size_t>PyBytes_GET_SIZE(VERSION_LINE)
    else:
        header_len -= 2                 # without the final empty line
    out.clear()
    d = out.reserve(header_len + n + 4 + payload_len)
    memcpy(d, header, header_len)
    memcpy(d + header_len, line, n)
    end = d + header_len + n
    memcpy(end, b"\r\n\r\n", 4)
    end += 4
    if payload_len:
        memcpy(end, m.body + m.header_len, payload_len)
    made[0] = m[0]
    made.body = d
    made.header_len = <size_t>(end - d)
    made.body_len = made.header_len + payload_len
    return 0


cdef class Pump:
    """Delivers one consumer's messages.

    Args:
        log, state, index: the stream's messages, the consumer's state, the subscriptions.
        ack_prefix: `$JS.ACK.<stream>.<consumer>.`
        filters: subjects the consumer receives; empty for all.
        position: the first stream sequence.
        on_end: callable(target, TargetEnd) for each target that leaves the list; None: no calls.
        replaying: delivers the messages that are stored now at their original pace.
    """

    def __cinit__(self, StreamLog log not None, AckState state not None, SubscriptionIndex index not None,
                  bytes ack_prefix not None, list filters not None, uint64_t position, *,
                  object on_end=None, bint replaying=False):
        self.log = log
        self.state = state
        self.ack_prefix = ack_prefix
        self.position = position
        self.parked_max = PARKED_MAX
        self.given_up = []
        self.reads = BlockReads()
        self.scratch = OutBuffer()
        self.pin_scratch = OutBuffer()
        self.replaying = replaying
        self.rotation = Rotation(index, state, on_end)
        self.reply_prefix = <size_t>PyBytes_GET_SIZE(ack_prefix)
        self.reply = <char*>array_new(self.reply_prefix + ACK_NUMBERS * (NUMBER_MAX + 1), 1, b"bytes of ack subjects")
        memcpy(self.reply, PyBytes_AS_STRING(ack_prefix), self.reply_prefix)
        self.set_filters(filters)

    def __dealloc__(self):
        free(self.reply)
        free(self.skip)

    def set_filters(self, list filters not None):
        """Delivers only messages whose subject one of `filters` matches from now on."""
        self.close()
        self.filters = [bytes(f) for f in filters]
        self.filter_count = len(self.filters)
        self.cursor = None
        if self.filter_count:
            self.cursor = FilterCursor(self.log, self.filters)
            self.cursor.attach(True)
            self.log.follow(self, self.filters)
        self.pending_known = False

    def report_to(self, list ready_list):
        """Appends itself to this list when a message that passes its filters is stored; None: stop reporting."""
        self.ready_list = ready_list

    def close(self):
        """Stops deliveries and notifications of stored messages."""
        if self.cursor is not None:
            self.cursor.attach(False)
            self.log.unfollow(self)

    def move_to(self, uint64_t position):
        """Continues at another stream sequence, which may be before the last delivered one."""
        self.position = position
        self.skip_at = self.skip_count = 0
        self.set_filters(self.filters)      # the cursor's state is valid only for higher sequences

    def start_with(self, list seqs not None, uint64_t resume):
        """Delivers exactly the messages at `seqs` (ascending) first, then all messages after `resume`."""
        cdef size_t n = len(seqs), i
        cdef uint64_t* skip = <uint64_t*>array_new(n, sizeof(uint64_t), b"sequences")
        for i in range(n):
            skip[i] = seqs[i]
        free(self.skip)
        self.skip = skip
        self.skip_count = n
        self.skip_at = 0
        self.skip_resume = resume
        self.position = skip[0] if n else resume + 1
        self.pending_known = False

    def set_key_token(self, uint32_t token):
        """Delivers messages whose subjects share the token at this index (from 1) one at a time and in order; 0: all
        in the order of the stream. Messages already in flight count."""
        cdef Record record
        cdef KeyOrder keys = None
        self.keys = self.state.keys = None
        if token or self.state.num_parked:
            keys = KeyOrder(token)
            for seq, _, _, deliveries in self.state.pending():
                if not self.log.read(seq, &record):
                    continue                # pick() drops it later
                if deliveries:
                    keys.start(keys.hash_of(record.subject, record.subject_len, seq), seq)
                else:
                    keys.wait(keys.hash_of(record.subject, record.subject_len, seq), seq)
        self.keys = self.state.keys = keys

    def configure(self, *, bint headers_only=False, int64_t max_ack_pending=0, uint32_t max_deliver=0,
                  bint prioritized=False):
        """Sets what may change while the consumer exists.

        Args:
            headers_only: delivers a header with the size instead of the payload.
            max_ack_pending: at most so many unacked messages; 0 or negative: no limit.
            max_deliver: at most so many deliveries of a message; 0: no limit.
            prioritized: targets of a lower priority number come first.
        """
        self.headers_only = headers_only
        self.max_ack_pending = max_ack_pending
        self.max_deliver = max_deliver
        self.rotation.prioritized = prioritized

    def set_rate(self, int64_t rate, int64_t burst):
        """Delivers at most `rate` bytes per second (0: no limit), with bursts of `burst` bytes."""
        self.rate = rate if rate > 0 else 0
        self.rate_burst = burst
        self.rate_tokens = <double>burst
        self.rate_at = 0

    # --- the next message --------------------------------------------------------------------------------

    cdef uint64_t find_next(self) except? 0:
        """The next stream sequence to deliver for the first time, 0 when there is none yet (or, with
        `cursor.searching`, the search is not finished)."""
        if self.skip_at < self.skip_count:
            return self.skip[self.skip_at]
        if self.cursor is not None:
            return self.cursor.next(self.position)
        if self.position > self.log.last_seq:
            return 0
        return self.log.next_matching(self.position, NULL, 0)

    cdef uint64_t next_unparked(self) except? 0:
        """The next parked message whose key has become free, 0 when there is none."""
        cdef uint64_t seq
        while True:
            seq = self.keys.next_ready()
            if seq == 0 or self.state.is_parked(seq):
                return seq
            self.keys.drop_ready()          # it was removed from the stream

    cdef int passed_over(self, const Record* r) except -1:
        """Parks a new message whose key is busy."""
        self.state.park(r.seq)
        self.keys.wait(self.keys.hash_of(r.subject, r.subject_len, r.seq), r.seq)
        return self.passed(r.seq)

    cdef int passed(self, uint64_t seq) except -1:
        """Continues the search after seq, which was delivered or removed."""
        cdef bint in_list
        if self.skip_at < self.skip_count:
            self.skip_at += 1
            in_list = self.skip_at < self.skip_count
            self.position = self.skip[self.skip_at] if in_list else self.skip_resume + 1
        else:
            self.position = seq + 1
        return 0

    cdef int read_next(self, uint64_t seq, Record* r) except -1:
        """Reads the record at seq, a result of find_next(), using prefetched records."""
        if self.skip_at < self.skip_count:
            return self.reads.read(self.log, &self.skip[self.skip_at], self.skip_count - self.skip_at, r)
        if self.cursor is not None:
            return self.reads.read(self.log, &self.cursor.run[self.cursor.run_at],
                                   self.cursor.run_count - self.cursor.run_at, r)
        return self.log.read(seq, r)

    cdef uint64_t first_beyond(self) noexcept:
        """The first sequence after the initial ones of deliver last per subject: from there on filters decide."""
        return self.skip_resume + 1 if self.skip_at < self.skip_count else self.position

    cdef uint64_t count_pending(self) except? 0:
        cdef uint64_t total = self.skip_count - self.skip_at, start = self.first_beyond()
        if self.cursor is not None:
            return total + self.cursor.count(start)
        if start > self.log.last_seq:
            return total
        return total + self.log._count_all_from(start)

    cdef int on_append(self, uint64_t seq) except -1:
        if seq >= self.first_beyond():
            self.cursor.appended(seq)
            self.pending += 1
            if self.ready_list is not None and not self.is_listed:
                self.is_listed = True
                self.ready_list.append(self)
        return 0

    cdef int on_remove(self, uint64_t seq) except -1:
        if self.pending and seq >= self.first_beyond():
            self.pending -= 1
        return 0

    cdef int on_loss(self) except -1:
        self.pending_known = False
        return 0

    cdef int refresh_pending(self) except -1:
        """Brings `pending` up to date with what was appended and removed since the last time."""
        cdef uint64_t last = self.log.last_seq, removed, skipped, start, upto
        cdef bint in_list = self.skip_at < self.skip_count
        if self.cursor is not None:
            if not self.pending_known:
                self.pending = self.count_pending()
                self.pending_known = True
            return 0                        # notifications keep it up to date from then on
        if not in_list and self.position > last:
            self.pending = 0
        elif not in_list and self.log.messages == last - self.log.first_seq + 1:
            start = self.position if self.position > self.log.first_seq else self.log.first_seq
            self.pending = last - start + 1
        else:
            removed = self.log.removals - self.pending_removals
            if removed and self.log.first_seq <= self.pending_at and \
                    removed == self.log.front_removals - self.pending_front:
                removed = 0                 # all of them were before `position`
            # It may begin at a future sequence: messages stored before that one don't count.
            upto = max(self.pending_upto, self.skip_resume if in_list else self.position - 1)
            skipped = self.log.skipped - self.pending_skipped
            if not self.pending_known or removed or (skipped and upto > self.pending_upto):
                self.pending = self.count_pending()
            elif upto < last:
                self.pending += last - upto - skipped
        self.pending_known = True
        self.pending_upto = last
        self.pending_removals = self.log.removals
        self.pending_skipped = self.log.skipped
        self.pending_front = self.log.front_removals
        self.pending_at = self.position
        return 0

    @property
    def num_pending(self):
        """Messages that pass the filters and are not delivered yet."""
        self.refresh_pending()
        return self.pending + self.state.num_parked

    @property
    def skipping(self):
        """Is it still delivering the initial messages of deliver last per subject?"""
        return self.skip_at < self.skip_count

    def drop_missing(self):
        """Settles pending messages that are no longer in the stream; returns how many."""
        cdef Record record
        cdef size_t dropped = 0
        for seq, _, _, _ in self.state.pending():
            if not self.log.read(seq, &record):
                (<object>self.state).drop(seq)
                dropped += 1
        return dropped

    # --- one message -----------------------------------------------------------------------------------

    cdef size_t build_reply(
        self, uint64_t deliveries, uint64_t seq, uint64_t cseq, int64_t ts, uint64_t pending
    ) noexcept:
        cdef char* d = self.reply + self.reply_prefix
        d += put_uint(d, deliveries)
        d[0] = c"."
        d += 1
        d += put_uint(d, seq)
        d[0] = c"."
        d += 1
        d += put_uint(d, cseq)
        d[0] = c"."
        d += 1
        d += put_uint(d, <uint64_t>ts if ts > 0 else 0)
        d[0] = c"."
        d += 1
        d += put_uint(d, pending)
        return <size_t>(d - self.reply)

    cdef int strip_payload(self, Message* m) except -1:
        """headers_only: replaces the payload by a header with its size."""
        cdef char line[MSG_SIZE_LINE_MAX]
        cdef size_t n = <size_t>PyBytes_GET_SIZE(MSG_SIZE_HEADER), payload_len = m.body_len - m.header_len
        memcpy(line, PyBytes_AS_STRING(MSG_SIZE_HEADER), n)
        n += put_uint(line + n, payload_len)
        m.body_len = m.header_len
        return add_header(self.scratch, m, line, n, m)

    cdef int add_pin(self, const Message* m, Message* pinned) except -1:
        """Adds a header with the current pin."""
        cdef bytes header = self.rotation.pin_header
        return add_header(self.pin_scratch, m, PyBytes_AS_STRING(header), <size_t>PyBytes_GET_SIZE(header), pinned)

    cdef int64_t pause_ns(self, int64_t ts, size_t size, int64_t now) noexcept:
        """How long a new message, stored at ts, has to wait; 0 when it may be delivered."""
        cdef int64_t pause
        cdef double need, bound
        if self.replaying and self.replayed_ts:
            pause = ts - self.replayed_ts
            if pause > REPLAY_PAUSE_MIN_NS and self.replayed_at + pause > now:
                return self.replayed_at + pause - now
        if self.rate:
            bound = <double>self.rate_burst
            if self.rate_at and now > self.rate_at:
                self.rate_tokens += <double>(now - self.rate_at) * <double>self.rate / 1e9
            if self.rate_tokens > bound:
                self.rate_tokens = bound
            self.rate_at = now
            need = <double>size if <double>size < bound else bound
            if self.rate_tokens < need:
                return <int64_t>((need - self.rate_tokens) * 1e9 / <double>self.rate) + 1
        return 0

    # --- flow control ------------------------------------------------------------------------------------

    def control_flow(self, int64_t window, send_request not None):
        """Stops while more than `window` bytes (at least 1) are unanswered; a flow control request goes to the
        receiver by send_request(), which is called among the messages."""
        if window <= 0:
            raise ValueError(f"a flow control window has at least one byte, not {window}")
        self.flow_window = window
        self.send_flow_request = send_request

    def reset_flow(self):
        """Forgets what is unanswered and the outstanding request; the window stays."""
        self.flow_bytes = self.flow_size = 0
        self.flow_open = False

    cpdef int flow_requested(self) except -1:
        """Notes a flow control request, whose response accounts for everything delivered so far."""
        self.flow_open = True
        self.flow_size = self.flow_bytes
        return 0

    def flow_answered(self, int64_t window_max):
        """Handles the response to the outstanding request: doubles the window, up to window_max bytes."""
        self.flow_window = min(self.flow_window * 2, window_max)
        self.flow_bytes = max(self.flow_bytes - self.flow_size, 0)
        self.flow_size = 0
        self.flow_open = False

    cdef int account(self, size_t size) except -1:
        """Sends a flow control request when half of the window is used."""
        self.flow_bytes += <int64_t>size
        if self.flow_open:
            if self.flow_bytes - self.flow_size >= self.flow_window:
                self.flow_size += <int64_t>size
        elif self.flow_bytes > self.flow_window // 2:
            self.flow_requested()
            self.send_flow_request()
        return 0

    # --- the run -----------------------------------------------------------------------------------------

    cdef int pick(self, Pick* picked, Record* record) except -1:
        """Selects the next message and returns RUN_PICKED, or why there is none (RunEnd). Skips messages that were
        removed, reached max_deliver or have to wait for their key."""
        cdef uint64_t seq
        cdef bint uses_acks = self.state.policy != ACK_NONE
        while True:
            seq = self.state.next_queued() if uses_acks else 0
            picked.again = seq != 0
            picked.unparked = False
            if seq:
                picked.seq = seq
                picked.deliveries = self.state.deliveries_of(seq)
                if self.max_deliver and picked.deliveries >= self.max_deliver:
                    self.given_up.append((seq, picked.deliveries))
                    (<object>self.state).give_up(seq)
                elif not self.log.read(seq, record):
                    (<object>self.state).drop(seq)
                else:
                    picked.deliveries += 1
                    return RUN_PICKED
                continue
            if self.max_ack_pending > 0 and uses_acks and self.state.num_pending >= <size_t>self.max_ack_pending:
                return RUN_ACKS_FULL
            if self.keys is not None:
                seq = self.next_unparked()
                picked.unparked = seq != 0
            if seq == 0:
                seq = self.find_next()
            if seq == 0 and self.cursor is not None and self.cursor.searching:
                return RUN_BUDGET
            if seq == 0:
                self.replaying = False      # later messages arrive at their original pace anyway
                self.reads.drop()
                return RUN_EMPTY
            picked.seq = seq
            picked.deliveries = 1
            if not (self.log.read(seq, record) if picked.unparked else self.read_next(seq, record)):
                if picked.unparked:
                    (<object>self.state).drop(seq)
                else:
                    if self.cursor is None or self.skip_at == self.skip_count:
                        self.pending_known = False
                    elif self.pending:
                        self.pending -= 1   # the cursor does not count the initial messages
                    self.passed(seq)
                    self.refresh_pending()
            elif self.keys is None or picked.unparked or not self.keys.is_busy(
                    self.keys.hash_of(record.subject, record.subject_len, seq)):
                return RUN_PICKED
            elif self.state.num_parked >= self.parked_max:
                return RUN_KEYS_FULL
            else:
                self.passed_over(record)
                if self.pending:
                    self.pending -= 1

    cdef int note_sent(self, const Pick* picked, const Record* record, size_t size, int64_t now) except -1:
        """Updates all state after a target accepted the message."""
        if picked.unparked:
            self.keys.take_ready()
        elif not picked.again:
            if self.keys is not None:
                self.keys.start(self.keys.hash_of(record.subject, record.subject_len, picked.seq), picked.seq)
            self.passed(picked.seq)
            if self.pending:
                self.pending -= 1
        if not picked.again:
            self.replayed_ts = record.ts
            self.replayed_at = now
            if self.rate:
                self.rate_tokens -= <double>size
        self.state.deliver(picked.seq, now)
        self.sent += 1
        self.total_sent += 1
        return 0

    def run(self, list targets not None, int64_t now, uint64_t budget):
        """Delivers up to `budget` messages to `targets` round robin and returns why it stopped (RunEnd).

        Updates `targets` in place: removes complete and lost targets (after rotation.on_end) and orders the others
        by who is served next. Appends messages that reached max_deliver to `given_up`.
        """
        cdef uint64_t pending
        cdef int why = RUN_EMPTY
        cdef Pick picked
        cdef Record record
        cdef Message m, pinned
        cdef Rotation rotation = self.rotation
        cdef Target target
        cdef size_t size
        cdef int64_t pause
        self.sent = 0
        self.wait_until = 0
        self.refresh_pending()
        while True:
            if self.sent >= budget:
                return RUN_BUDGET
            if not targets:
                return RUN_NO_TARGET
            if self.flow_window > 0 and self.flow_bytes > self.flow_window:
                return RUN_STALLED
            why = self.pick(&picked, &record)
            if why != RUN_PICKED:
                return why
            pending = self.pending + self.state.num_parked
            if not picked.again and pending:
                pending -= 1
            m.subject = record.subject
            m.subject_len = record.subject_len
            m.body = record.body
            m.header_len = record.header_len
            m.body_len = record.body_len
            if self.headers_only:
                self.strip_payload(&m)
            m.reply = self.reply
            m.reply_len = self.build_reply(
                picked.deliveries, picked.seq, self.state.delivered_consumer + 1, record.ts, pending
            )
            size = m.subject_len + m.reply_len + m.body_len
            if not picked.again and (self.replaying or self.rate):
                pause = self.pause_ns(record.ts, size, now)
                if pause:
                    self.wait_until = now + pause
                    return RUN_WAIT
            while True:
                target = rotation.choose(targets, size, pending)
                if target is None:
                    return RUN_BLOCKED if rotation.blocked else RUN_STANDBY if rotation.standby else RUN_NO_TARGET
                if rotation.new_pin is not None:
                    self.add_pin(&m, &pinned)
                if rotation.send(target, &pinned if rotation.new_pin is not None else &m):
                    break
                rotation.end(targets, target, END_NO_INTEREST)
            self.note_sent(&picked, &record, size, now)
            rotation.took(targets, target, size)
            if self.flow_window > 0:
                self.account(size)


def ready(list pumps not None):
    """Indexes of the pumps that have a message to deliver: one call for all waiting consumers of a stream that don't
    report themselves."""
    cdef size_t i, n = <size_t>len(pumps)
    cdef Pump pump
    cdef list result = []
    for i in range(n):
        pump = <Pump?>pumps[i]
        if pump.find_next() or pump.state.next_queued() or (pump.cursor is not None and pump.cursor.searching):
            result.append(i)
    return result


def drain_ready(list reported not None):
    """The pumps that reported themselves since the last call; empties `reported`."""
    cdef Pump pump
    cdef list taken = reported[:]
    reported.clear()
    for pump in taken:
        pump.is_listed = False
    return taken

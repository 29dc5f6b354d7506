"""The messages of one stream: blocks of records, per-subject state, counters. No files here.

Every sequence has an entry in its block; entries of one subject are chained forward, so that a consumer
of one subject hops from message to message. The chain may pass removed messages; what is sure is that
from a subject's first live message it leads through all its live ones to the last.

Removals are noted in the open block as they are written (durable logs): a range of removed sequences, or
the floor below which everything went. Each block begins with the floor and the last sequence at that time,
so that older blocks can be deleted without a trace being lost.

Invariants: blocks are in order of sequence and only the last one is open; messages, bytes and the subject
counts speak of the same set of live messages; last_seq never falls.
Rejected: a Python object or dict entry per message (50 to 200 bytes and a refcount each); an index by
subject per block (chains answer with one load what an index answers with a search).
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

from penstock.kernels.msgblock cimport (
    ENTRY_DEAD,
    ENTRY_NONE,
    ENTRY_OFFSET,
    NEXT_FAR,
    SPAN_MAX,
    Entry,
    MessageBlock,
    SubjectRow,
)
from penstock.kernels.records cimport (
    KIND_FLOOR,
    KIND_MESSAGE,
    KIND_REMOVED,
    RECORD_OK,
    RECORD_SUBJECT_MAX,
    Record,
    decode_record,
    encode_record,
    record_size,
)
from penstock.kernels.records import WHY
from penstock.kernels.sinks cimport Message
from penstock.kernels.subjectstate cimport Subject, SubjectState, matches, wild

cdef enum:
    BLOCK_SIZE = 8388608
    BLOCK_SIZE_MAX = 0x40000000
    WARM_MAX = 2                    # closed blocks that keep their own copy after they are on disk
    MAPPED_MAX = 256                # closed blocks loaded again
    LOOK_HOPS = 64                  # hops along a chain between two looks at the neighbourhood

DEFAULT_BLOCK_SIZE = BLOCK_SIZE


cdef class StoredMessage:
    def __init__(self, uint64_t seq, int64_t ts, bytes subject not None, bytes header not None,
                 bytes payload not None):
        self.seq = seq
        self.ts = ts
        self.subject = subject
        self.header = header
        self.payload = payload

    def __eq__(self, other):
        if not isinstance(other, StoredMessage):
            return NotImplemented
        cdef StoredMessage o = other
        return (
            self.seq == o.seq and self.ts == o.ts and self.subject == o.subject and self.header == o.header
            and self.payload == o.payload
        )

    __hash__ = None

    def __repr__(self):
        return f"StoredMessage(seq={self.seq}, subject={self.subject!r}, {len(self.payload)} bytes)"


cdef class StreamLog:
    def __cinit__(self, size_t block_size=BLOCK_SIZE, bint durable=False, load_block=None, on_lost=None):
        if block_size < 64 or block_size > BLOCK_SIZE_MAX:
            raise ValueError(f"a block has 64 bytes to 1 GiB, not {block_size}")
        self.first_seq = 1
        self.block_size = block_size
        self.durable = durable
        self.load_block = load_block
        self.on_lost = on_lost
        self.blocks = []
        self.state = SubjectState()
        self.warm = []
        self.mapped = []
        self._closed = []
        self._dropped = []
        self._patches = []
        self.sparse = []
        self.next_number = 1

    def __dealloc__(self):
        free(self.ranges)

    # ------------------------------------------------------------------ append and read

    cdef int _roll(self) except -1:
        """Closes the open block and begins a new one."""
        cdef MessageBlock block = MessageBlock(self.next_number, self.last_seq + 1)
        if self.durable:
            block.note(KIND_FLOOR, self.first_seq, self.last_seq, self.last_ts)
            self.noted_floor = self.first_seq
        if self.tail is not None:
            self.tail.closed = True
            if self.durable:
                self._closed.append(self.tail)
            self._queue_if_sparse(self.tail)
        self.next_number += 1
        self.blocks.append(block)
        self.tail = block
        if len(self.blocks) > 1:
            self._drop_heads()
        return 0

    cdef uint64_t append_message(self, const Message* m, int64_t ts) except 0:
        cdef size_t size = record_size(m.subject_len, m.header_len, m.body_len)
        cdef MessageBlock block = self.tail
        cdef uint64_t seq = self.last_seq + 1
        cdef Subject* s
        cdef char* d
        if size == 0 or m.subject_len == 0:
            raise ValueError(
                f"a message with a subject of {m.subject_len} and a body of {m.body_len} bytes can't be stored"
            )
        if block is None or (
            block.count and (block.size + size > self.block_size or seq - block.first_seq > <uint64_t>SPAN_MAX)
        ):
            self._roll()
            block = self.tail
        d = block.reserve(size)
        s = self.state.intern(m.subject, m.subject_len)
        block.push(seq, <uint32_t>block.size, ts, size)
        encode_record(d, size, KIND_MESSAGE, seq, ts, m.subject, m.subject_len, m.body, m.header_len, m.body_len)
        block.size += size
        if s.count:
            self._link(s.last, seq)
        else:
            s.first = seq
        s.last = seq
        s.count += 1
        if self.messages == 0:
            self.first_seq = seq
            self.first_ts = ts
        self.last_seq = seq
        self.last_ts = ts
        self.messages += 1
        self.bytes += size
        return seq

    cdef int _link(self, uint64_t from_seq, uint64_t to_seq) noexcept:
        cdef Entry* entry = self._entry(from_seq)
        cdef uint64_t delta = to_seq - from_seq
        if entry == NULL:
            return 0
        entry.next_delta = <uint32_t>delta if delta < <uint64_t>NEXT_FAR else <uint32_t>NEXT_FAR
        if self.chain.reach < to_seq:
            self.chain.reach = to_seq
        return 1

    cdef Entry* _entry(self, uint64_t seq) noexcept:
        """The entry of a sequence, dead or alive; `chain` is then its block."""
        cdef MessageBlock block = self.chain
        cdef Py_ssize_t at
        cdef size_t i
        if block is None or seq < block.first_seq or seq > block.last_seq:
            i = self._block_from(seq)
            if i == <size_t>len(self.blocks):
                return NULL
            block = <MessageBlock>self.blocks[i]
            self.chain = block
        at = block.find(seq)
        return NULL if at < 0 else &block.entries[at]

    cdef size_t _block_from(self, uint64_t seq) noexcept:
        """Position of the first block that reaches seq; how many blocks there are when none does."""
        cdef size_t n = len(self.blocks)
        cdef size_t low = 0, high = n, middle
        if n and self.tail is not None and seq >= self.tail.first_seq and self.tail.count:
            return n - 1 if seq <= self.tail.last_seq else n
        while low < high:
            middle = (low + high) // 2
            if (<MessageBlock>self.blocks[middle]).last_seq < seq:
                low = middle + 1
            else:
                high = middle
        return low

    cdef MessageBlock _seek(self, uint64_t seq):
        """The block holding seq, or None; remembered in `here`."""
        cdef MessageBlock block = self.here
        cdef size_t i
        if block is not None and block.first_seq <= seq <= block.last_seq:
            return block
        i = self._block_from(seq)
        if i == <size_t>len(self.blocks):
            return None
        block = <MessageBlock>self.blocks[i]
        if seq < block.first_seq:
            return None
        self.here = block
        return block

    cdef int _load(self, MessageBlock block) except -1:
        """Brings the bytes of a closed block back."""
        cdef const unsigned char[:] data
        cdef MessageBlock oldest
        assert self.load_block is not None
        source = memoryview(self.load_block(block.number))
        data = source
        if <size_t>data.shape[0] < block.size:
            raise ValueError(f"block {block.number} has {block.size} bytes, only {data.shape[0]} could be loaded")
        block.source = source
        block.data = <char*>&data[0]
        block.verify = True
        self.mapped.append(block)
        while len(self.mapped) > MAPPED_MAX:
            oldest = <MessageBlock>self.mapped.pop(0)
            if oldest is not block and oldest.source is not None:
                oldest.release()
        return 0

    cdef int _decode(self, MessageBlock block, size_t at, Record* r) except -1:
        """The record of an entry into r: a RecordStatus; its hash is checked when it comes from disk."""
        cdef uint32_t offset = block.entries[at].offset & <uint32_t>ENTRY_OFFSET
        cdef int kind = 0, status
        if block.data == NULL:
            self._load(block)
        if offset >= block.size:
            return 3
        status = decode_record(block.data + offset, block.size - offset, r, &kind, block.verify)
        if status == RECORD_OK and (kind != KIND_MESSAGE or r.seq != block.seq_at(at)):
            return 4
        return status

    cdef int read(self, uint64_t seq, Record* r) except -1:
        cdef MessageBlock block = self._seek(seq)
        cdef Py_ssize_t at
        cdef int status
        if block is None:
            return 0
        at = block.find(seq)
        if at < 0 or block.entries[at].offset & <uint32_t>ENTRY_DEAD:
            return 0
        status = self._decode(block, at, r)
        if status != RECORD_OK:
            self._lose(block, at, seq, status)
            return 0
        return 1

    cdef int _lose(self, MessageBlock block, size_t at, uint64_t seq, int status) except -1:
        self._count_lost(block, at, seq, status)
        if seq == self.first_seq:
            self._advance_first()
        return 0

    cdef int _count_lost(self, MessageBlock block, size_t at, uint64_t seq, int status) except -1:
        """The disk lied about one message: it counts as gone, loudly. Its subject isn't known any more, so
        the subject's state keeps counting it until the log is opened again; readers skip it."""
        cdef uint32_t offset = block.entries[at].offset
        cdef uint64_t size = 0
        block.entries[at].offset = offset | <uint32_t>ENTRY_DEAD
        if at + 1 < block.count and block.entries[at + 1].offset != <uint32_t>ENTRY_NONE:
            size = (block.entries[at + 1].offset & <uint32_t>ENTRY_OFFSET) - offset
        else:
            size = block.size - offset
        if size > block.live_bytes or block.live == 1:
            size = block.live_bytes
        block.live -= 1
        block.live_bytes -= size
        self.messages -= 1
        self.bytes -= size if size < self.bytes else self.bytes
        self.removals += 1
        self.lost += 1
        if self.on_lost is not None:
            self.on_lost(block.number, offset, seq, WHY.get(status, "it is another record"))
        return 0

    # ------------------------------------------------------------------ looking for sequences

    cdef uint64_t _next_live(self, uint64_t seq) noexcept:
        """First live sequence >= seq, 0 when there is none."""
        cdef size_t i, n = len(self.blocks), at
        cdef MessageBlock block
        if seq > self.last_seq:
            return 0
        block = self.here
        if block is not None and block.first_seq <= seq <= block.last_seq:
            for at in range(block.find_from(seq), block.count):
                if not block.entries[at].offset & <uint32_t>ENTRY_DEAD:
                    return block.seq_at(at)
            seq = block.last_seq + 1
        i = self._block_from(seq)
        while i < n:
            block = <MessageBlock>self.blocks[i]
            if block.live:
                for at in range(block.find_from(seq), block.count):
                    if not block.entries[at].offset & <uint32_t>ENTRY_DEAD:
                        self.here = block
                        return block.seq_at(at)
            i += 1
        return 0

    cdef uint64_t _scan(self, uint64_t seq, const char* filter, size_t n, uint64_t most) except? 0:
        """First live sequence >= seq that matches, looking at `most` messages (0 = all)."""
        cdef Record r
        cdef uint64_t looked = 0
        cdef bint literal = not wild(filter, n)
        seq = self._next_live(seq)
        while seq:
            if self.read(seq, &r):
                if literal:
                    if r.subject_len == n and memcmp(r.subject, filter, n) == 0:
                        return seq
                elif matches(filter, n, r.subject, r.subject_len):
                    return seq
            looked += 1
            if looked == most:
                return 0
            seq = self._next_live(seq + 1)
        return 0

    cdef uint64_t next_matching(self, uint64_t seq, const char* filter, size_t n) except? 0:
        cdef Subject* s
        if seq < self.first_seq:
            seq = self.first_seq
        if self.messages == 0 or seq > self.last_seq:
            return 0
        if filter == NULL or n == 0 or (n == 1 and filter[0] == c'>'):
            return self._next_live(seq)
        if wild(filter, n):
            return self._scan(seq, filter, n, 0)
        s = self.state.find(filter, n)
        return 0 if s == NULL else self._along(s, seq)

    cdef uint64_t _along(self, Subject* s, uint64_t seq) except? 0:
        """First live sequence >= seq of a subject, along its chain. Where the way is long, it looks at
        seq's neighbourhood too: whichever finds it first."""
        cdef uint32_t sid = <uint32_t>(s - self.state.items) + 1
        cdef Hint* hint = &self.hints[sid % HINTS]
        cdef const char* text = self.state.arena + s.text
        cdef uint64_t at = s.first, found, beside = seq
        cdef size_t hops = 0
        cdef Entry* entry
        cdef bint hinted = False
        if seq > s.last:
            return 0
        if hint.subject == sid and hint.seq > at and hint.seq <= seq and self._entry(hint.seq) != NULL:
            at = hint.seq
            hinted = True
        while True:
            entry = self._entry(at)
            if entry != NULL and at >= seq and not entry.offset & <uint32_t>ENTRY_DEAD:
                break
            if entry == NULL or entry.next_delta == <uint32_t>NEXT_FAR or (entry.next_delta == 0 and not hinted):
                # Lost to the disk, or too far for a delta: no chain to follow.
                return self._scan(seq, text, s.text_len, 0)
            if entry.next_delta == 0:
                # A hint at a message that went while it was the last: later ones aren't linked to it.
                hinted = False
                at = s.first
                continue
            at += entry.next_delta
            hops += 1
            if hops % LOOK_HOPS == 0 and at < seq:
                found = self._scan(beside, text, s.text_len, LOOK_HOPS)
                if found:
                    at = found
                    break
                beside = self._beyond(beside, LOOK_HOPS)
                if beside == 0:
                    return 0
        hint.subject = sid
        hint.seq = at
        return at

    cdef uint64_t _beyond(self, uint64_t seq, size_t count) noexcept:
        """The live sequence `count` live messages behind the first one >= seq; 0 when there are fewer."""
        cdef size_t i
        seq = self._next_live(seq)
        for i in range(count):
            if seq == 0:
                return 0
            seq = self._next_live(seq + 1)
        return seq

    cdef uint64_t last_of_subject(self, const char* s, size_t n) except? 0:
        cdef Subject* subject = self.state.find(s, n)
        return 0 if subject == NULL else subject.last

    # ------------------------------------------------------------------ removing

    cdef int _note_range(self, uint64_t seq) except -1:
        cdef size_t wanted
        cdef uint64_t* p
        if self.range_count and self.ranges[2 * self.range_count - 1] + 1 == seq:
            self.ranges[2 * self.range_count - 1] = seq
            return 0
        if self.range_count == self.range_capacity:
            wanted = self.range_capacity * 2 if self.range_capacity else 16
            p = <uint64_t*>realloc(self.ranges, wanted * 16)
            if p == NULL:
                raise MemoryError(f"no memory for {wanted} removed ranges")
            self.ranges = p
            self.range_capacity = wanted
        self.ranges[2 * self.range_count] = seq
        self.ranges[2 * self.range_count + 1] = seq
        self.range_count += 1
        return 0

    cdef int _remove(self, uint64_t seq, bint noted, bint secure) except -1:
        """Removes one live message: 1, or 0 when there is none. `noted`: the store has to hear of it."""
        cdef MessageBlock block = self._seek(seq)
        cdef Py_ssize_t at
        cdef Record r
        cdef Subject* s
        cdef int status
        if block is None:
            return 0
        at = block.find(seq)
        if at < 0 or block.entries[at].offset & <uint32_t>ENTRY_DEAD:
            return 0
        status = self._decode(block, at, &r)
        if status != RECORD_OK:
            self._lose(block, at, seq, status)
            return 1
        if noted and self.durable and (secure or seq != self.first_seq):
            self._note_range(seq)
        s = self.state.find(r.subject, r.subject_len)
        block.entries[at].offset |= <uint32_t>ENTRY_DEAD
        block.live -= 1
        block.live_bytes -= r.size
        self.messages -= 1
        self.bytes -= r.size
        self.removals += 1
        if block.closed and not block.queued and block.live_bytes * 2 < block.size:
            self._queue_if_sparse(block)
        if secure:
            self._overwrite(block, at, &r)
        if s != NULL:
            s.count -= 1
            if s.count == 0:
                self._forget_hint(s)
                self.state.drop(s)
            elif s.first == seq:
                s.first = self._along(s, seq + 1)
                if s.first == 0:        # the others were lost to the disk
                    self._forget_hint(s)
                    self.state.drop(s)
            elif s.last == seq:
                s.last = self._last_live(s, seq)
        if seq == self.first_seq:
            self._advance_first()
        return 1

    cdef void _forget_hint(self, Subject* s) noexcept:
        cdef uint32_t sid = <uint32_t>(s - self.state.items) + 1
        if self.hints[sid % HINTS].subject == sid:
            self.hints[sid % HINTS].subject = 0

    cdef uint64_t _last_live(self, Subject* s, uint64_t gone) except? 0:
        """The last live message of a subject below `gone`, its last until now."""
        cdef uint64_t at = s.first, last = s.first
        cdef Entry* entry
        while at < gone:
            entry = self._entry(at)
            if entry == NULL or entry.next_delta == 0:
                break
            if not entry.offset & <uint32_t>ENTRY_DEAD:
                last = at
            if entry.next_delta == <uint32_t>NEXT_FAR:
                at = self._scan(at + 1, self.state.arena + s.text, s.text_len, 0)
                if at == 0:
                    break
            else:
                at += entry.next_delta
        self._forget_hint(s)
        return last

    cdef int _overwrite(self, MessageBlock block, size_t at, const Record* r) except -1:
        """Puts a removal note of the same size over a record, so that nothing of it is left."""
        cdef uint32_t offset = block.entries[at].offset & <uint32_t>ENTRY_OFFSET
        cdef bytes blank = bytes(r.size)
        cdef bytes note = PyBytes_FromStringAndSize(NULL, r.size)
        cdef uint64_t seq = r.seq
        cdef size_t i
        encode_record(<char*>note, r.size, KIND_REMOVED, seq, <int64_t>seq, <const char*>blank, r.subject_len,
                      <const char*>blank, r.header_len, r.body_len)
        if block.source is None:
            for i in range(r.size):
                block.data[offset + i] = (<char*>note)[i]
        else:
            block.release()
        if self.durable:
            self._patches.append((block.number, offset, note))
            self.noted_floor = 0  # last sequence and timestamp may have been this record's: note them
        block.entries[at].offset |= <uint32_t>ENTRY_DEAD
        return 0

    cdef int _advance_first(self) except -1:
        cdef uint64_t seq = self._next_live(self.first_seq)
        cdef MessageBlock block
        cdef Record r
        cdef Py_ssize_t at
        if seq == 0:
            self.first_seq = self.last_seq + 1
            self.first_ts = 0
        else:
            self.first_seq = seq
            block = self._seek(seq)
            at = block.find(seq)
            if self._decode(block, at, &r) == RECORD_OK:
                self.first_ts = r.ts
        return self._drop_heads()

    cdef int _drop_heads(self) except -1:
        """Empty blocks at the front go, but never the open one."""
        cdef MessageBlock block
        while self.blocks:
            block = <MessageBlock>self.blocks[0]
            if block.live or block is self.tail:
                return 0
            self._discard(0)
        return 0

    cdef int _discard(self, size_t i) except -1:
        cdef MessageBlock block = <MessageBlock>self.blocks[i]
        del self.blocks[i]
        if self.durable:
            self._dropped.append(block.number)
        self.rewrites += 1
        return self._detach(block)

    cdef int _detach(self, MessageBlock block) except -1:
        """Forgets a block that left the list."""
        if block in self._closed:
            self._closed.remove(block)
        if block in self.warm:
            self.warm.remove(block)
        if block.source is not None and block in self.mapped:
            self.mapped.remove(block)
        if block.queued and block in self.sparse:
            self.sparse.remove(block)
        if self.here is block:
            self.here = None
        if self.chain is block:
            self.chain = None
        return 0

    cdef int _queue_if_sparse(self, MessageBlock block) except -1:
        """A closed block of which more than half went is worth rewriting."""
        if not block.queued and (block.live_bytes + <uint64_t>len(block.removed) * 30) * 2 < block.size:
            block.queued = True
            self.sparse.append(block)
        return 0

    cdef uint64_t enforce_limits(self, int64_t msgs_max, int64_t bytes_max) except? 0:
        cdef uint64_t gone = 0
        while self.messages and (
            (msgs_max > 0 and self.messages > <uint64_t>msgs_max) or (bytes_max > 0 and self.bytes > <uint64_t>bytes_max)
        ):
            gone += self._remove(self.first_seq, True, False)
        return gone

    cdef uint64_t enforce_subject_limit(self, const char* s, size_t n, uint64_t keep) except? 0:
        cdef Subject* subject = self.state.find(s, n)
        cdef uint64_t gone = 0, excess
        if subject == NULL or subject.count <= keep:
            return 0
        excess = subject.count - keep
        while gone < excess:
            if not self._remove(subject.first, True, False):
                break
            gone += 1
        return gone

    # ------------------------------------------------------------------ for Python

    def append(self, bytes subject not None, bytes header not None, bytes payload not None, int64_t ts):
        cdef bytes body = header + payload if header else payload
        cdef Message m
        memset(&m, 0, sizeof(Message))
        m.subject = <const char*>subject
        m.subject_len = len(subject)
        m.body = <const char*>body
        m.header_len = len(header)
        m.body_len = len(body)
        return self.append_message(&m, ts)

    cdef StoredMessage _stored(self, uint64_t seq):
        cdef Record r
        cdef StoredMessage message
        if seq == 0 or not self.read(seq, &r):
            return None
        message = StoredMessage.__new__(StoredMessage)
        message.seq = r.seq
        message.ts = r.ts
        message.subject = PyBytes_FromStringAndSize(r.subject, r.subject_len)
        message.header = PyBytes_FromStringAndSize(r.body, r.header_len)
        message.payload = PyBytes_FromStringAndSize(r.body + r.header_len, r.body_len - r.header_len)
        return message

    def load(self, uint64_t seq):
        return self._stored(seq)

    def load_last(self, bytes filter not None):
        return self._stored(self.last_seq_of(filter))

    def last_seq_of(self, bytes filter not None):
        cdef size_t i, n
        cdef uint64_t last = 0
        if filter == b"" or filter == b">":
            return self._previous_live(self.last_seq)
        n = self.state.match(<const char*>filter, len(filter))
        for i in range(n):
            if self.state.items[self.state.matched[i]].last > last:
                last = self.state.items[self.state.matched[i]].last
        return last

    cdef uint64_t _previous_live(self, uint64_t seq) noexcept:
        """Last live sequence <= seq, 0 when there is none."""
        cdef Py_ssize_t i = len(self.blocks) - 1, at
        cdef MessageBlock block
        while i >= 0:
            block = <MessageBlock>self.blocks[i]
            if block.live and block.first_seq <= seq:
                at = block.find_from(seq)
                if at == <Py_ssize_t>block.count or block.seq_at(at) > seq:
                    at -= 1
                while at >= 0:
                    if not block.entries[at].offset & <uint32_t>ENTRY_DEAD:
                        return block.seq_at(at)
                    at -= 1
            i -= 1
        return 0

    def load_next(self, bytes filter not None, uint64_t seq):
        return self._stored(self.next_matching(seq, <const char*>filter, len(filter)))

    def next_seq(self, uint64_t seq, bytes filter not None=b""):
        return self.next_matching(seq, <const char*>filter, len(filter))

    def remove(self, uint64_t seq, bint secure=False):
        return self._remove(seq, True, secure) == 1

    def limit(self, int64_t msgs_max, int64_t bytes_max):
        return self.enforce_limits(msgs_max, bytes_max)

    def limit_subject(self, bytes subject not None, uint64_t keep):
        return self.enforce_subject_limit(<const char*>subject, len(subject), keep)

    def enforce_age(self, int64_t oldest_ts):
        cdef uint64_t gone = 0
        while self.messages and self.first_ts < oldest_ts:
            gone += self._remove(self.first_seq, True, False)
        return gone

    def purge(self, bytes filter=None, uint64_t upto_seq=0, uint64_t keep=0):
        cdef uint64_t gone = 0, most, seq
        if filter is None or filter == b">":
            filter = b""
        if filter == b"" and keep == 0 and upto_seq > self.last_seq:
            self.last_seq = upto_seq - 1
            return self._purge_all()
        most = self.count_matching(filter)
        most = most - keep if most > keep else 0
        if most == 0:
            return 0
        if filter == b"" and upto_seq == 0 and keep == 0:
            return self._purge_all()
        seq = self.next_matching(self.first_seq, <const char*>filter, len(filter))
        while seq and gone < most and (upto_seq == 0 or seq < upto_seq):
            gone += self._remove(seq, True, False)
            seq = self.next_matching(seq + 1, <const char*>filter, len(filter))
        return gone

    def _purge_all(self):
        """Nothing stays: no need to look at the messages one by one."""
        cdef uint64_t gone = self.messages
        cdef MessageBlock block
        for block in self.blocks:
            if self.durable:
                self._dropped.append(block.number)
        self.blocks = []
        self._closed.clear()
        self.sparse.clear()
        self.warm.clear()
        self.mapped.clear()
        self.tail = self.here = self.chain = None
        self.state.clear()
        self._patches.clear()
        memset(self.hints, 0, sizeof(self.hints))
        self.range_count = 0
        self.messages = self.bytes = 0
        self.removals += gone
        self.first_seq = self.last_seq + 1
        self.first_ts = 0
        if self.durable:
            self._roll()
        return gone

    def set_first_seq(self, uint64_t seq):
        if self.messages or seq <= self.last_seq:
            raise ValueError(
                f"the first sequence can be set to {seq} in an empty log only, above its last ({self.last_seq})"
            )
        self.last_seq = seq - 1
        self._purge_all()

    @property
    def num_subjects(self):
        return self.state.count

    def subject_memory(self):
        """Bytes the subject state holds."""
        return self.state.memory()

    def subjects(self, bytes filter not None=b">"):
        cdef size_t i, n = self.state.match(<const char*>filter, len(filter))
        cdef Subject* s
        cdef dict found = {}
        for i in range(n):
            s = &self.state.items[self.state.matched[i]]
            found[PyBytes_FromStringAndSize(self.state.arena + s.text, s.text_len)] = s.count
        return found

    def last_seqs(self, bytes filter not None=b">", uint64_t upto_seq=0):
        """Last sequence of each matching subject (at or below upto_seq when given), ascending."""
        cdef size_t i, n = self.state.match(<const char*>filter, len(filter))
        cdef Subject* s
        cdef list found = []
        cdef list late = []
        for i in range(n):
            s = &self.state.items[self.state.matched[i]]
            if upto_seq == 0 or s.last <= upto_seq:
                found.append(s.last)
            elif s.first <= upto_seq:
                late.append(self.state.matched[i])
        for sid in late:
            found.append(self._last_upto(<uint32_t>sid, upto_seq))
        found.sort()
        return found

    cdef uint64_t _last_upto(self, uint32_t sid, uint64_t upto_seq) except? 0:
        cdef Subject* s = &self.state.items[sid]
        cdef uint64_t at = s.first, last = s.first
        while at and at <= upto_seq:
            last = at
            at = self._along(s, at + 1)
        return last

    def count_matching(self, bytes filter not None=b">"):
        cdef size_t i, n
        cdef uint64_t count = 0
        if filter == b"" or filter == b">":
            return self.messages
        n = self.state.match(<const char*>filter, len(filter))
        for i in range(n):
            count += self.state.items[self.state.matched[i]].count
        return count

    cdef uint64_t _count_all_from(self, uint64_t seq) noexcept:
        cdef uint64_t count = 0
        cdef size_t i, at
        cdef MessageBlock block
        if seq <= self.first_seq:
            return self.messages
        i = self._block_from(seq)
        while i < <size_t>len(self.blocks):
            block = <MessageBlock>self.blocks[i]
            if seq <= block.first_seq:
                count += block.live
            elif block.live == block.count:
                count += block.count - block.find_from(seq)
            else:
                for at in range(block.find_from(seq), block.count):
                    count += not block.entries[at].offset & <uint32_t>ENTRY_DEAD
            i += 1
        return count

    def count_from(self, uint64_t seq, bytes filter not None=b""):
        cdef size_t i, n
        cdef Subject* s
        cdef uint64_t count = 0, total = 0, straddling = 0, at
        cdef list ids = []
        if filter == b"" or filter == b">":
            return self._count_all_from(seq)
        n = self.state.match(<const char*>filter, len(filter))
        for i in range(n):
            s = &self.state.items[self.state.matched[i]]
            total += s.count
            if s.first >= seq:
                count += s.count
            elif s.last >= seq:
                straddling += s.count
                ids.append(self.state.matched[i])
        if total == self.messages:
            return self._count_all_from(seq)
        for sid in ids:
            s = &self.state.items[<uint32_t>sid]
            at = self._along(s, seq)
            while at:
                count += 1
                at = 0 if at >= s.last else self._along(s, at + 1)
        return count

    def seq_at_time(self, int64_t ts):
        """First live sequence stored at or after ts; last_seq + 1 when none is."""
        cdef size_t low = 0, high = len(self.blocks), middle
        cdef MessageBlock block
        cdef Record r
        cdef uint64_t seq
        while low < high:
            middle = (low + high) // 2
            block = <MessageBlock>self.blocks[middle]
            if block.count and block.last_ts < ts:
                low = middle + 1
            else:
                high = middle
        if low == <size_t>len(self.blocks):
            return self.last_seq + 1
        block = <MessageBlock>self.blocks[low]
        seq = self._next_live(self._seq_at_time_in(block, ts) if block.count else self.last_seq + 1)
        while seq:
            if self.read(seq, &r) and r.ts >= ts:
                return seq
            seq = self._next_live(seq + 1)
        return self.last_seq + 1

    cdef uint64_t _seq_at_time_in(self, MessageBlock block, int64_t ts) except? 0:
        cdef size_t low = 0, high = block.count, middle, probe
        cdef Record r
        while low < high:
            middle = (low + high) // 2
            probe = middle
            while probe < high and (block.entries[probe].offset == <uint32_t>ENTRY_NONE
                                    or self._decode(block, probe, &r) != RECORD_OK):
                probe += 1
            if probe == high:
                high = middle
            elif r.ts < ts:
                low = probe + 1
            else:
                high = middle
        return block.seq_at(low) if low < block.count else block.last_seq + 1

    @property
    def num_deleted(self):
        return self.last_seq + 1 - self.first_seq - self.messages if self.messages else 0

    def deleted(self, size_t limit=0):
        """Removed sequences between first and last, ascending, at most `limit` (0 = all)."""
        cdef list found = []
        cdef uint64_t expected = self.first_seq, seq
        if self.num_deleted == 0:
            return found
        seq = self._next_live(expected)
        while True:
            while expected < (seq if seq else self.last_seq + 1):
                found.append(expected)
                if limit and <size_t>len(found) == limit:
                    return found
                expected += 1
            if seq == 0:
                return found
            expected = seq + 1
            seq = self._next_live(expected)

    # ------------------------------------------------------------------ for the store

    def block_list(self):
        return list(self.blocks)

    def flush_notes(self):
        """Puts what went into the open block, so that the next write carries it."""
        cdef size_t i
        cdef uint64_t low, high
        if not self.durable:
            return
        if self.tail is None:
            if self.range_count == 0 and self.first_seq <= self.noted_floor:
                return
            self._roll()
        for i in range(self.range_count):
            low = self.ranges[2 * i]
            high = self.ranges[2 * i + 1]
            if high >= self.first_seq:
                self.tail.note(KIND_REMOVED, low if low > self.first_seq else self.first_seq, high, 0)
        self.range_count = 0
        if self.first_seq > self.noted_floor:
            self.tail.note(KIND_FLOOR, self.first_seq, self.last_seq, self.last_ts)
            self.noted_floor = self.first_seq

    def unwritten(self):
        """Blocks with bytes the operating system hasn't got, in order."""
        cdef MessageBlock block
        cdef list found = []
        cdef Py_ssize_t i = len(self.blocks) - 1
        # Only closed blocks of this tick and the open one can have any: look from the end.
        while i >= 0:
            block = <MessageBlock>self.blocks[i]
            if block.written < block.size and not block.replaces:
                found.append(block)
            elif block.closed:
                break
            i -= 1
        found.reverse()
        return found

    def take_closed(self):
        """Closed blocks whose index isn't on disk yet; they are the store's business from now on."""
        closed = self._closed
        self._closed = []
        return closed

    def take_dropped(self):
        """Numbers of blocks whose files may go once everything written so far is on its way to disk."""
        dropped = self._dropped
        self._dropped = []
        return dropped

    def take_patches(self):
        """(block number, offset, bytes) to write over what is in the files."""
        patches = self._patches
        self._patches = []
        return patches

    def settle(self, MessageBlock block not None):
        """The block is on disk, index and all: its bytes need not stay in memory."""
        if self.load_block is None or not block.closed or block.data == NULL:
            return
        self.warm.append(block)
        while len(self.warm) > WARM_MAX:
            (<MessageBlock>self.warm.pop(0)).release()

    def restore(self, list blocks not None):
        """Takes over blocks read from disk, in order of number; the log must be new. See the .pyi."""
        cdef MessageBlock block, previous = None
        cdef uint64_t floor = 1, last = 0, replaced = 0, seq, low, high
        cdef list kept = [], refused = []
        assert not self.blocks and self.last_seq == 0
        for block in blocks:
            self.next_number = max(self.next_number, max(block.number, block.replaces_upto) + 1)
            if block.number <= replaced:
                # Its messages were put into a block before, and then something ended the process.
                self._dropped.append(block.number)
                continue
            replaced = max(replaced, block.replaces_upto)
            if previous is not None and block.count and block.first_seq <= previous.last_seq:
                refused.append((block.number, f"it begins at {block.first_seq}, the block before ends at {previous.last_seq}"))
                continue
            if block.count == 0:
                block.begin_at((previous.last_seq if previous is not None else 0) + 1)
            floor = max(floor, block.floor)
            last = max(last, max(block.last_at_least, block.last_seq))
            self.last_ts = block.last_ts if block.count and block.last_seq >= block.last_at_least else block.noted_ts
            kept.append(block)
            previous = block
        for block in kept:
            if block.last_seq < floor and block.closed:
                self._dropped.append(block.number)
                continue
            self.blocks.append(block)
            if not block.closed:
                assert block is kept[len(kept) - 1]
                self.tail = block
            self._merge(block)
        self.last_seq = last
        self.first_seq = 1
        self._advance_first()
        for block in kept:
            for low, high in block.removed:
                seq = self._next_live(max(low, self.first_seq))
                while seq and seq <= high:
                    self._remove(seq, False, False)
                    seq = self._next_live(seq + 1)
        while self.messages and self.first_seq < floor:
            self._remove(self.first_seq, False, False)
        if self.messages == 0:
            self.first_seq = max(floor, last + 1)
            self.last_seq = self.first_seq - 1
        self.noted_floor = floor
        self._drop_heads()
        for block in self.blocks:
            if block.closed:
                self._queue_if_sparse(block)
        self.removals = 0
        return refused

    cdef int _merge(self, MessageBlock block) except -1:
        """A restored block's messages into the counters and the subject state."""
        cdef Record r
        cdef size_t at
        cdef uint64_t seq
        if block.subject_rows is not None:
            self._merge_rows(block)
        else:
            for at in range(block.count):
                if block.entries[at].offset & <uint32_t>ENTRY_DEAD:
                    continue
                seq = block.seq_at(at)
                if self._decode(block, at, &r) == RECORD_OK:
                    self._merge_subject(r.subject, r.subject_len, seq, seq, 1)
        self.messages += block.live
        self.bytes += block.live_bytes
        self.last_seq = block.last_seq
        return 0

    cdef int _merge_rows(self, MessageBlock block) except -1:
        cdef const char* p = <const char*>block.subject_rows
        cdef size_t left = len(block.subject_rows)
        cdef SubjectRow row
        while left >= sizeof(SubjectRow):
            memcpy(&row, p, sizeof(SubjectRow))
            p += sizeof(SubjectRow)
            left -= sizeof(SubjectRow)
            if row.text_len > left or row.first > row.last or row.last >= block.count or row.count == 0:
                raise ValueError(f"the index of block {block.number} contradicts itself")
            self._merge_subject(p, row.text_len, block.seq_at(row.first), block.seq_at(row.last), row.count)
            p += row.text_len
            left -= row.text_len
        block.subject_rows = None
        return 0

    cdef int _merge_subject(self, const char* text, size_t n, uint64_t first, uint64_t last, uint64_t count) except -1:
        cdef Subject* s = self.state.intern(text, n)
        if s.count:
            self._link(s.last, first)
        else:
            s.first = first
        s.last = last
        s.count += count
        return 0

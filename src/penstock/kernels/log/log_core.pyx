"""The hot paths of a stream's messages: append, read, find the next, remove.

Every sequence has an entry in its block; entries of one subject are linked forward, so that a consumer
of one subject goes from message to message. The chain may include removed messages; from a subject's first live
message it always includes all live ones up to the last.

Removals are recorded as tombstones in the open block (durable logs): a range of removed sequences, or
the floor below which everything was removed. Each block begins with the last written floor and the last
sequence at that time, so that older blocks can be deleted without losing this information.

Invariants: blocks are in order of sequence and only the last one is open; messages, bytes and the subject
counts describe the same set of live messages; last_seq never decreases.
Measured with 128-byte messages: append 150 ns, read 15 ns (32 ns when the block comes from disk and each
record's hash is checked), the next of a literal subject 30 ns.
Rejected: a Python object or dict entry per message (50 to 200 bytes and a refcount each); an index by
subject per block (a search, where a chain needs one memory load).
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from penstock.kernels.routing.grammar cimport filter_matches, has_wildcard
from penstock.kernels.log.subject_state cimport Follower, LogWatch, Subject, SubjectState
from penstock.kernels.log.message_block cimport (
    ENTRY_DEAD,
    ENTRY_OFFSET,
    NEXT_FAR,
    SPAN_MAX,
    Entry,
    MessageBlock,
)
from penstock.kernels.log.records cimport (
    KIND_FLOOR,
    KIND_MESSAGE,
    KIND_REMOVED,
    RECORD_BAD_KIND,
    RECORD_BAD_LENGTH,
    RECORD_OK,
    RECORD_OVERHEAD,
    RECORD_HEADER_OVERHEAD,
    Record,
    cost_of,
    decode_record,
    encode_record,
    encode_unhashed,
    record_size,
)
from penstock.kernels.log.records import WHY
from penstock.kernels.wire.sinks cimport Message

cdef enum:
    BLOCK_SIZE_MIN = 64
    BLOCK_SIZE_MAX = 0x40000000
    MEMORY_OVERHEAD = 16            # cost of a message in memory storage in addition to its bytes
    LOADED_MAX = 256                # closed blocks loaded again, and their bytes: the oldest are released first
    LOADED_BYTES_MAX = 33554432
    LOOK_HOPS = 64                  # hops along a chain between two scans near the target sequence
    LOOK_MESSAGES = 512             # messages to scan before using the subject index


cdef class LogCore:
    def __cinit__(self, size_t block_size=BLOCK_SIZE_DEFAULT, bint durable=False, load_block=None, on_lost=None,
                  read_ranges=None, str storage not None="file"):
        if block_size < BLOCK_SIZE_MIN or block_size > BLOCK_SIZE_MAX:
            raise ValueError(f"a block has 64 bytes to 1 GiB, not {block_size}")
        if storage == "file":
            self.cost.fixed, self.cost.header = RECORD_OVERHEAD, RECORD_HEADER_OVERHEAD
        elif storage == "memory" and not durable and load_block is None:
            self.cost.fixed, self.cost.header = MEMORY_OVERHEAD, 0
        else:
            raise ValueError(f"storage is file or, for a log without files, memory: not {storage}")
        self.first_seq = 1
        self.block_size = block_size
        self.durable = durable
        self.has_files = durable or load_block is not None
        self.load_block = load_block
        self.on_lost = on_lost
        self.read_ranges = read_ranges
        self.blocks = []
        self.state = SubjectState()
        self.warm = []
        self.loaded = []
        self._closed = []
        self._dropped = []
        self._patches = []
        self._superseded = set()
        self.sparse = []
        self.next_number = 1
        self.written_floor = 1

    def __dealloc__(self):
        free(self.ranges)

    # ------------------------------------------------------------------ append and read

    cdef int _roll(self) except -1:
        """Closes the open block and begins a new one."""
        cdef MessageBlock block = MessageBlock(self.next_number, self.last_seq + 1)
        assert not self.in_batch            # recovery looks for a batch in one block
        assert self.tail is None or (self.tail.number < self.next_number and self.tail.last_seq <= self.last_seq)
        if self.tail is not None:
            # The stream fills blocks: allocate a whole one, instead of doubling and copying.
            block.reserve(self.block_size)
        if self.durable:
            # Not the current floor: messages below it may have been replaced by others in later blocks,
            # or in a block that was dropped unwritten. flush_tombstones() writes it after all of them.
            block.append_tombstone(KIND_FLOOR, self.written_floor, self.last_seq, self.last_ts)
            self.recorded_floor = self.written_floor
        if self.tail is not None:
            self.tail.closed = True
            if self.has_files:
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
            block.count and not self.in_batch
            and (block.size + size > self.block_size or seq - block.first_seq > <uint64_t>SPAN_MAX)
        ):
            self._roll()
            block = self.tail
        assert not block.closed and block.last_seq < seq
        d = block.reserve(size)
        s = self.state.intern(m.subject, m.subject_len)
        assert s.count == 0 or s.last < seq
        block.push(seq, <uint32_t>block.size, ts, size)
        if self.has_files:
            encode_record(d, size, KIND_MESSAGE, seq, ts, m.subject, m.subject_len, m.body, m.header_len, m.body_len)
        else:
            encode_unhashed(d, size, KIND_MESSAGE, seq, ts, m.subject, m.subject_len, m.body, m.header_len, m.body_len)
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
        self.bytes += cost_of(&self.cost, m.subject_len, m.header_len, m.body_len)
        assert self.first_seq <= seq and s.first <= s.last and block.size <= block.capacity
        if self.watch is not None and s.mark != self.watch.epoch:
            self.watch.notify(seq, s, m.subject, m.subject_len, False)
        return seq

    cdef uint64_t skip_message(self, int64_t ts) except 0:
        self.last_seq += 1
        self.skipped += 1
        self.last_ts = ts
        if self.messages == 0:
            self.first_seq = self.last_seq + 1
        self.recorded_floor = 0                # forces a tombstone: the sequence must be durable
        return self.last_seq

    cpdef int skip_to(self, uint64_t seq, int64_t ts) except -1:
        if seq <= self.last_seq:
            return 0
        self.skipped += seq - 1 - self.last_seq
        self.last_seq = seq - 1
        self.skip_message(ts)
        return 0

    cdef int _link(self, uint64_t from_seq, uint64_t to_seq) noexcept:
        cdef Entry* entry = self._entry(from_seq)
        cdef uint64_t delta = to_seq - from_seq
        if entry == NULL:
            return 0
        entry.next_delta = <uint32_t>delta if delta < <uint64_t>NEXT_FAR else <uint32_t>NEXT_FAR
        if self.chain_block.reach < to_seq:
            self.chain_block.reach = to_seq
        return 1

    cdef Entry* _entry(self, uint64_t seq) noexcept:
        """The entry of a sequence, dead or live; sets `chain_block` to its block."""
        cdef MessageBlock block = self.chain_block
        cdef Py_ssize_t at
        cdef size_t i
        if block is None or seq < block.first_seq or seq > block.last_seq:
            i = self._block_from(seq)
            if i == <size_t>len(self.blocks):
                return NULL
            block = <MessageBlock>self.blocks[i]
            self.chain_block = block
        at = block.find(seq)
        return NULL if at < 0 else &block.entries[at]

    cdef size_t _block_from(self, uint64_t seq) noexcept:
        """Index of the first block whose last sequence is >= seq; the number of blocks when there is none."""
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
        """The block with seq, or None; cached in `read_block`."""
        cdef MessageBlock block = self.read_block
        cdef size_t i
        if block is not None and block.first_seq <= seq <= block.last_seq:
            return block
        i = self._block_from(seq)
        if i == <size_t>len(self.blocks):
            return None
        block = <MessageBlock>self.blocks[i]
        if seq < block.first_seq:
            return None
        self.read_block = block
        return block

    cdef int _load(self, MessageBlock block) except -1:
        """Loads the bytes of a closed block."""
        cdef const unsigned char[:] data
        # A block with unwritten bytes would lose them, and one with a view must not get other ones.
        assert self.load_block is not None and block.data == NULL
        assert block.written == block.size and block.views == 0
        source = memoryview(self.load_block(block.number, block.size))
        data = source
        if <size_t>data.shape[0] < block.size:
            raise ValueError(f"block {block.number} has {block.size} bytes, only {data.shape[0]} could be loaded")
        block.source = source
        block.borrowed = True
        block.data = <char*>&data[0]
        block.verify = True
        self.loaded.append(block)
        self.loaded_bytes += block.size
        while len(self.loaded) > 1 and (len(self.loaded) > LOADED_MAX or self.loaded_bytes > LOADED_BYTES_MAX):
            self._unload(<MessageBlock>self.loaded[0])
        return 0

    cdef int _unload(self, MessageBlock block) except -1:
        """Releases the bytes of a loaded block."""
        assert self.loaded_bytes >= block.size
        self.loaded.remove(block)
        self.loaded_bytes -= block.size
        if block.borrowed:
            block.release()
        return 0

    cdef int _decode(self, MessageBlock block, size_t at, Record* r) except -1:
        """Reads the record of an entry into r and returns a RecordStatus; checks the hash of bytes from disk."""
        cdef uint32_t offset = block.entries[at].offset & <uint32_t>ENTRY_OFFSET
        cdef int kind = 0, status
        assert at < block.count
        if block.data == NULL:
            self._load(block)
        if offset >= block.size:
            return RECORD_BAD_LENGTH
        status = decode_record(block.data + offset, block.size - offset, r, &kind, block.verify)
        if status == RECORD_OK and (kind != KIND_MESSAGE or r.seq != block.seq_at(at)):
            return RECORD_BAD_KIND
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
            self._lose(block, at, status)
            return 0
        return 1

    cdef bint may_have_header(self, uint64_t seq, size_t least) except -1:
        cdef MessageBlock block = self._seek(seq)
        cdef Py_ssize_t at
        cdef Record r
        cdef uint32_t offset
        cdef int kind = 0
        if block is None:
            return False
        at = block.find(seq)
        if at < 0 or block.entries[at].offset & <uint32_t>ENTRY_DEAD:
            return False
        if block.data == NULL:
            self._load(block)
        offset = block.entries[at].offset & <uint32_t>ENTRY_OFFSET
        if offset >= block.size:
            return True
        if decode_record(block.data + offset, block.size - offset, &r, &kind, False) != RECORD_OK:
            return True                     # read() counts it as lost
        return r.header_len > least

    cdef int _lose(self, MessageBlock block, size_t at, int status) except -1:
        self._count_lost(block, at, status)
        if self._next_live(self.first_seq) != self.first_seq:
            self._advance_first()
        return 0

    cdef int _count_lost(self, MessageBlock block, size_t at, int status) except -1:
        """Removes the unreadable message at `at`, and all others of its block, from the counters.

        The sizes of unreadable records are unknown: between two records there may also be tombstones, or removed
        records. Guesses would make the counters drift and wrap, and limits would then remove readable messages.
        Therefore the whole block is checked and its bytes are counted again.

        The subjects of these messages are unknown, too: the subjects' state counts them until the log is
        opened again, and readers skip them. Only logs with files lose messages, and those count whole records.
        """
        cdef Record r
        cdef size_t i
        cdef int found
        cdef uint64_t size = 0
        cdef list lost = []
        for i in range(block.count):
            if block.entries[i].offset & <uint32_t>ENTRY_DEAD:
                continue
            found = status if i == at else self._decode(block, i, &r)
            if found == RECORD_OK:
                size += r.size
                continue
            lost.append((block.entries[i].offset, block.seq_at(i), WHY.get(found, "it is another record")))
            block.entries[i].offset |= <uint32_t>ENTRY_DEAD
        assert block.live >= <uint64_t>len(lost) and self.messages >= <uint64_t>len(lost)
        assert block.live_bytes >= size and self.bytes >= block.live_bytes - size
        block.live -= len(lost)
        self.bytes -= block.live_bytes - size
        block.live_bytes = size
        self.messages -= len(lost)
        self.removals += len(lost)
        self.lost += len(lost)
        if self.watch is not None:
            self.watch.lost()
        if self.on_lost is not None:
            self.on_lost(block.number, lost)
        return 0

    # ------------------------------------------------------------------ search

    cdef uint64_t _next_live(self, uint64_t seq) noexcept:
        """First live sequence >= seq, 0 when there is none."""
        cdef size_t i, n = len(self.blocks), at
        cdef MessageBlock block
        if seq > self.last_seq:
            return 0
        block = self.read_block
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
                        self.read_block = block
                        return block.seq_at(at)
            i += 1
        return 0

    cdef uint64_t _scan(self, uint64_t seq, const char* filter, size_t n, uint64_t most) except? 0:
        """First live sequence >= seq that matches among the next `most` messages (0 = all)."""
        cdef Record r
        cdef uint64_t looked = 0
        cdef bint literal = not has_wildcard(filter, n)
        seq = self._next_live(seq)
        while seq:
            if self.read(seq, &r):
                if literal:
                    if r.subject_len == n and memcmp(r.subject, filter, n) == 0:
                        return seq
                elif filter_matches(filter, n, r.subject, r.subject_len):
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
        if has_wildcard(filter, n):
            return self._next_wild(seq, filter, n)
        s = self.state.find(filter, n)
        return 0 if s == NULL else self._along(s, seq)

    cdef uint64_t _next_wild(self, uint64_t seq, const char* filter, size_t n) except? 0:
        """Next message of a wildcard filter: first scans the next messages, then uses the subject index. The scan is
        fast when the filter matches many messages, the index when it matches few."""
        cdef uint64_t found = self._scan(seq, filter, n, LOOK_MESSAGES), best = 0
        cdef size_t i, count, straddling = 0
        cdef Subject* s
        if found:
            return found
        seq = self._beyond(seq, LOOK_MESSAGES)
        if seq == 0:
            return 0
        count = self.state.match(filter, n)
        for i in range(count):
            s = &self.state.items[self.state.matched[i]]
            if s.first >= seq:
                if best == 0 or s.first < best:
                    best = s.first
            elif s.last >= seq:
                straddling += 1
        if straddling > HINTS:
            return self._scan(seq, filter, n, 0)
        for i in range(count if straddling else 0):
            s = &self.state.items[self.state.matched[i]]
            if s.first < seq and s.last >= seq:
                found = self._along(s, seq)
                if found and (best == 0 or found < best):
                    best = found
        if best and self._next_live(best) != best:
            return self._scan(seq, filter, n, 0)  # the subject's state still counts a message damaged on disk
        return best

    cdef uint64_t _along(self, Subject* s, uint64_t seq) except? 0:
        """First live sequence >= seq of a subject, along its chain. On a long chain it also scans from seq on, and
        returns the result of whichever search finishes first."""
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
                # Damaged on disk, or too far for a delta: the chain is broken.
                return self._scan(seq, text, s.text_len, 0)
            if entry.next_delta == 0:
                # The hint is a message that was removed while it was the last: later ones aren't linked to it.
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
        """The live sequence `count` live messages after the first one >= seq; 0 when there are fewer."""
        seq = self._next_live(seq)
        while count and seq:
            seq = self._next_live(seq + 1)
            count -= 1
        return seq

    cdef int follow(self, Follower follower, list filters) except -1:
        if self.watch is None:
            self.watch = LogWatch()
        if self.watch.add(follower, filters):
            self.state.clear_marks()
        return 0

    cdef int unfollow(self, Follower follower) except -1:
        if self.watch is not None:
            self.watch.drop(follower)
            if self.watch.is_empty():
                self.watch.index = None         # (the watch stays: a new one would restart the epochs of marks)
        return 0

    cdef uint64_t last_of_subject(self, const char* s, size_t n) except? 0:
        cdef Subject* subject = self.state.find(s, n)
        return 0 if subject == NULL else subject.last

    # ------------------------------------------------------------------ removal

    cdef int _record_range(self, uint64_t seq) except -1:
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

    cdef int _remove(self, uint64_t seq, bint recorded, bint secure) except -1:
        """Removes one live message: 1, or 0 when there is none. `recorded`: record a tombstone for the store."""
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
            self._lose(block, at, status)
            return 1
        if recorded and self.durable and (secure or seq != self.first_seq):
            self._record_range(seq)
        s = self.state.find(r.subject, r.subject_len)
        # Counters that wrap would make limits remove everything.
        assert block.live > 0 and block.live_bytes >= r.size and self.messages > 0
        assert self.bytes >= cost_of(&self.cost, r.subject_len, r.header_len, r.body_len)
        assert seq >= self.first_seq and (s == NULL or s.count > 0)
        block.entries[at].offset |= <uint32_t>ENTRY_DEAD
        block.live -= 1
        block.live_bytes -= r.size
        self.messages -= 1
        self.bytes -= cost_of(&self.cost, r.subject_len, r.header_len, r.body_len)
        self.removals += 1
        if self.storing:
            block.superseded_at = self.last_seq
        if block.closed and not block.queued and block.live_bytes * 2 < block.size:
            self._queue_if_sparse(block)
        if self.watch is not None and s != NULL and s.mark != self.watch.epoch:
            self.watch.notify(seq, s, r.subject, r.subject_len, True)
        if secure:
            self._overwrite(block, at, &r)
        if s != NULL:
            s.count -= 1
            if s.count == 0:
                self._forget_hint(s)
                self.state.drop(s)
            elif s.first == seq:
                s.first = self._along(s, seq + 1)
                if s.first == 0:        # the others were damaged on disk
                    self._forget_hint(s)
                    self.state.drop(s)
            elif s.last == seq:
                s.last = self._last_live(s, seq)
        if seq == self.first_seq:
            self.front_removals += 1
            self._advance_first()
        return 1

    cdef int retire(self, uint64_t seq) except -1:
        cdef uint64_t front_removals = self.front_removals
        if not self._remove(seq, True, False):
            return 0
        self.removals -= 1
        self.front_removals = front_removals
        return 1

    cdef int _pass_lost(self, Subject* s) except -1:
        """Counts a subject again when its oldest message was lost: nothing removes that one, so a limit would never
        remove the others. Lost messages between readable ones stay counted until they are the oldest."""
        cdef Entry* entry = self._entry(s.first)
        cdef uint64_t seq
        if s.count == 0 or (entry != NULL and not entry.offset & <uint32_t>ENTRY_DEAD):
            return 0
        self._forget_hint(s)
        seq = self._along(s, s.first + 1)
        if seq == 0:
            self._forget_hint(s)
            self.state.drop(s)
            return 0
        s.first = seq
        s.count = 0
        while seq:
            s.count += 1
            seq = self._along(s, seq + 1)
        return 0

    cdef void _forget_hint(self, Subject* s) noexcept:
        cdef uint32_t sid = <uint32_t>(s - self.state.items) + 1
        if self.hints[sid % HINTS].subject == sid:
            self.hints[sid % HINTS].subject = 0

    cdef uint64_t _last_live(self, Subject* s, uint64_t gone) except? 0:
        """The last live message of a subject below `gone`, which was its last."""
        cdef uint64_t at = s.first, last = s.first
        cdef Entry* entry
        while at < gone:
            entry = self._entry(at)
            if entry != NULL and not entry.offset & <uint32_t>ENTRY_DEAD:
                last = at
            if entry == NULL or entry.next_delta == 0 or entry.next_delta == <uint32_t>NEXT_FAR:
                # Damaged on disk, or too far for a delta: the chain is broken, and what follows it may be live.
                at = self._scan(at + 1, self.state.arena + s.text, s.text_len, 0)
                if at == 0:
                    break
            else:
                at += entry.next_delta
        self._forget_hint(s)
        return last

    cdef int _overwrite(self, MessageBlock block, size_t at, const Record* r) except -1:
        """Overwrites a record with a tombstone of the same size, so that none of its bytes remain."""
        cdef uint32_t offset = block.entries[at].offset & <uint32_t>ENTRY_OFFSET
        cdef bytes blank = bytes(r.size)
        cdef bytes tombstone = PyBytes_FromStringAndSize(NULL, r.size)
        cdef uint64_t seq = r.seq
        assert offset + r.size <= block.size
        encode_record(<char*>tombstone, r.size, KIND_REMOVED, seq, <int64_t>seq, <const char*>blank, r.subject_len,
                      <const char*>blank, r.header_len, r.body_len)
        if not block.borrowed:
            memcpy(block.data + offset, <const char*>tombstone, r.size)
        elif block in self.loaded:
            self._unload(block)
        else:
            block.release()
        if self.has_files:
            self._patches.append((block.number, offset, tombstone))
        if self.durable:
            self.recorded_floor = 0  # the log's last sequence and timestamp come from this record: record them
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
            assert seq >= self.first_seq and self.messages > 0
            self.first_seq = seq
            block = self._seek(seq)
            at = block.find(seq)
            assert 0 <= at < <Py_ssize_t>block.count
            if self._decode(block, at, &r) == RECORD_OK:
                self.first_ts = r.ts
        return self._drop_heads()

    cdef int _drop_heads(self) except -1:
        """Drops empty blocks at the front, but never the open one."""
        cdef MessageBlock block
        while self.blocks:
            block = <MessageBlock>self.blocks[0]
            if block.live or block is self.tail:
                return 0
            self._discard(0)
        return 0

    cdef int _discard(self, size_t i) except -1:
        cdef MessageBlock block = <MessageBlock>self.blocks[i]
        assert block.live == 0 and block is not self.tail       # its file is deleted
        del self.blocks[i]
        if self.has_files:
            self._dropped.append(block.number)
        if self.durable:
            if block.superseded_at > self.written_seq:
                self._superseded.add(block.number)
            if block.floor >= self.recorded_floor:
                self.recorded_floor = 0        # it may have had the only tombstone with the floor
        self.rewrites += 1
        return self._detach(block)

    cdef int _detach(self, MessageBlock block) except -1:
        """Removes all references to a block that left the list."""
        if block in self._closed:
            self._closed.remove(block)
        if block in self.warm:
            self.warm.remove(block)
        if block.borrowed and block in self.loaded:
            self.loaded.remove(block)
            self.loaded_bytes -= block.size
        if block.queued and block in self.sparse:
            self.sparse.remove(block)
        if self.read_block is block:
            self.read_block = None
        if self.chain_block is block:
            self.chain_block = None
        return 0

    cdef int _queue_if_sparse(self, MessageBlock block) except -1:
        """Queues a closed block for a rewrite when more than half of it was removed."""
        if not block.queued and (block.live_bytes + <uint64_t>block.removed_count * RECORD_OVERHEAD) * 2 < block.size:
            block.queued = True
            self.sparse.append(block)
        return 0

    cdef uint64_t enforce_limits(self, int64_t msgs_max, int64_t bytes_max, uint64_t most, uint64_t size) except? 0:
        cdef uint64_t gone = 0, before = self.bytes
        while self.messages and (
            (msgs_max > 0 and self.messages > <uint64_t>msgs_max)
            or (bytes_max > 0 and self.bytes > <uint64_t>bytes_max)
        ):
            if gone >= most and before - self.bytes >= size:
                break
            gone += self._remove(self.first_seq, True, False)
        return gone

    cdef uint64_t enforce_subject_limit(self, const char* s, size_t n, uint64_t keep, uint64_t most) except? 0:
        cdef Subject* subject = self.state.find(s, n)
        cdef uint64_t gone = 0, excess
        if subject != NULL and self.lost:
            self._pass_lost(subject)
        if subject == NULL or subject.count <= keep:
            return 0
        excess = subject.count - keep
        if excess > most:
            excess = most
        while gone < excess:
            if not self._remove(subject.first, True, False):
                break
            gone += 1
        return gone

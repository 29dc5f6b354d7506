"""Header blocks of publishes, and the message ids of a stream's dedupe window.

Header blocks: classifies the common JetStream headers without Python.

This kernel handles message ids, expectations and sequences in atomic batches (`Nats-Msg-Id`, `Nats-Expected-...`,
`Nats-Batch-...`); a block with any other `Nats-` name, or in any other form, is left to Python.

Invariants: a value equals the one that Python finds (protocol/headers.py: the first of its name, without surrounding
space); where the two could differ, the block is special. Rejected: parsing every header of a block (a
publish has tens of bytes of them, and nearly all belong to the application).

MessageIds: the `Nats-Msg-Id` values of a stream's dedupe window, and their sequences.

The ids are contiguous in one allocation, oldest first, with a hash table as index. An id of 22
bytes takes 48 bytes there and 8 to 16 in the table, and no Python object; at most a third more is free for
reuse. A lookup costs one hash and, nearly always, one comparison.

Invariants: the entries between head and tail are exactly those of the table, in order of time; an id older
than the window is never found, whether or not it was dropped already. Complete ids are stored and compared: with
hashes only, a collision would drop a message as a duplicate of another one.

The table is that of base/id_table; an id there is a slot, the place of an entry.

Rejected: a dict and a queue of Python objects (260 bytes and 0.3 us per id); comparing with the header in the
log (the message may be removed while its id still counts).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy, memmove, memset

from penstock.kernels.base.prefetch cimport fetch_to_read, fetch_to_write
from penstock.kernels.base.id_table cimport IdCells, id_bytes, id_drop, id_first, id_free, id_next, id_put, id_shrink
from penstock.kernels.base.memory cimport array_grow, array_shrink
from penstock.kernels.log.records cimport xxh64
from penstock.kernels.log.stream_log cimport StreamLog
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.wire.sinks cimport Message


# --- publish headers

cdef enum:
    HEADER_MAX = 0xffff             # Python refuses larger ones with error 10097
    STATUS_LINE_SIZE = 10           # "NATS/1.0\r\n"
    DIGITS_MAX = 20                 # of a sequence
    BATCH_DIGITS_MAX = 9            # of a sequence within an atomic batch
    HAS_BATCH_SEQ = 1               # combined with PUBLISH_IS_BATCHED and PUBLISH_COMMITS: the names found


cdef inline bint is_name(const char* line, size_t n, const char* name, size_t size) noexcept nogil:
    return n >= size and memcmp(line, name, size) == 0


cdef uint32_t expectation(const char* line, size_t n, size_t* name_size) noexcept nogil:
    """The expectation of a header line, and the size of its name and colon; 0: none."""
    if not is_name(line, n, b"Nats-Expected-", 14):
        return 0
    if is_name(line, n, b"Nats-Expected-Last-Subject-Sequence:", 36):
        name_size[0] = 36
        return EXPECTS_SUBJECT_SEQ
    if is_name(line, n, b"Nats-Expected-Last-Sequence:", 28):
        name_size[0] = 28
        return EXPECTS_SEQ
    if is_name(line, n, b"Nats-Expected-Stream:", 21):
        name_size[0] = 21
        return EXPECTS_STREAM
    if is_name(line, n, b"Nats-Expected-Last-Msg-Id:", 26):
        name_size[0] = 26
        return EXPECTS_LAST_ID
    return 0


cdef const char* trim(const char* value, const char* end, size_t* size) noexcept nogil:
    while value < end and (value[0] == c" " or value[0] == c"\t"):
        value += 1
    while end > value and ((end - 1)[0] == c" " or (end - 1)[0] == c"\t"):
        end -= 1
    size[0] = <size_t>(end - value)
    return value


cdef bint batch_line(const char* p, const char* line, size_t n, PublishHead* head, uint32_t* names) noexcept nogil:
    """Parses a `Nats-Batch-...` line of n bytes (without its end) into head; False: left to Python."""
    cdef const char* value
    cdef size_t size = 0, i
    cdef uint32_t name = 0, seq = 0
    if is_name(line, n, b"Nats-Batch-Id:", 14):
        name = PUBLISH_IS_BATCHED
        value = trim(line + 14, line + n, &size)
        head.batch_start = <uint16_t>(value - p)
        head.batch_len = <uint16_t>size
    elif is_name(line, n, b"Nats-Batch-Sequence:", 20):
        name = HAS_BATCH_SEQ
        value = trim(line + 20, line + n, &size)
        if size > BATCH_DIGITS_MAX:
            return False
        for i in range(size):
            if value[i] < c"0" or value[i] > c"9":
                return False
            seq = seq * 10 + <uint32_t>(value[i] - c"0")
        head.batch_seq = seq
    elif is_name(line, n, b"Nats-Batch-Commit:", 18):
        name = PUBLISH_COMMITS
        size = 1
    if name == 0 or size == 0 or names[0] & name:
        return False
    names[0] |= name
    return True


cdef void classify_header(const char* p, PublishHead* head) noexcept nogil:
    cdef size_t n = head.header_len
    cdef const char* end = p + n
    cdef const char* line
    cdef const char* value
    cdef const char* stop
    cdef uint32_t flags = 0, expected = 0, kind, batch_names = 0
    cdef bint has_id = False
    cdef size_t size = 0
    head.flags = PUBLISH_IS_SPECIAL
    if n < STATUS_LINE_SIZE or n > HEADER_MAX or memcmp(p, b"NATS/1.0\r\n", STATUS_LINE_SIZE) != 0:
        return
    line = p + STATUS_LINE_SIZE
    while end - line >= 5:
        stop = <const char*>memchr(line, c"\n", end - line)
        if stop != NULL and (stop - 1)[0] != c"\r":
            return                          # a line without CRLF: left to Python
        if memcmp(line, b"Nats-", 5) == 0:
            if stop == NULL:
                return
            if is_name(line, stop - line, b"Nats-Msg-Id:", ID_NAME_SIZE):
                if has_id:
                    return
                has_id = True
                value = trim(line + ID_NAME_SIZE, stop - 1, &size)
                if size:                # an empty id is ignored
                    head.id_start = <uint16_t>(value - p)
                    head.id_len = <uint16_t>size
                    flags |= PUBLISH_HAS_ID
            elif is_name(line, stop - line, b"Nats-Batch-", 11):
                if not batch_line(p, line, stop - 1 - line, head, &batch_names):
                    return
            else:
                kind = expectation(line, stop - line, &size)
                if kind == 0 or expected & kind:
                    return
                expected |= kind
                flags |= PUBLISH_EXPECTS
        if stop == NULL:
            break
        line = stop + 1
    if batch_names:
        if ~batch_names & (PUBLISH_IS_BATCHED | HAS_BATCH_SEQ):
            return                      # a batch id without a sequence, or vice versa
        flags |= PUBLISH_IS_BATCHED | (batch_names & PUBLISH_COMMITS)
    head.flags = <uint16_t>flags


cdef bint fits(const Message* m) noexcept nogil:
    return m.subject_len <= SUBJECT_MAX and m.reply_len <= SUBJECT_MAX and m.body_len <= BODY_MAX


cdef PublishHead* put_publish(OutBuffer buf, const Message* m) except NULL:
    cdef size_t size = sizeof(PublishHead) + m.subject_len + m.reply_len + m.body_len
    cdef size_t padded = (size + 7) & ~<size_t>7
    cdef PublishHead* head = <PublishHead*>buf.reserve(padded)
    cdef char* d = <char*>head + sizeof(PublishHead)
    head.size = <uint32_t>padded
    head.flags = 0
    head.subject_len = <uint16_t>m.subject_len
    head.reply_len = <uint16_t>m.reply_len
    head.header_len = <uint32_t>m.header_len
    head.body_len = <uint32_t>m.body_len
    head.id_start = head.id_len = 0
    if m.header_len:
        classify_header(m.body, head)
    memcpy(d, m.subject, m.subject_len)
    d += m.subject_len
    if m.reply_len:
        head.flags |= PUBLISH_HAS_REPLY
        memcpy(d, m.reply, m.reply_len)
        d += m.reply_len
    if m.body_len:
        memcpy(d, m.body, m.body_len)
    memset(d + m.body_len, 0, padded - size)
    buf.size += padded
    return head


cdef void message_of(const PublishHead* head, Message* m) noexcept nogil:
    m.subject = <const char*>head + sizeof(PublishHead)
    m.subject_len = head.subject_len
    m.reply = m.subject + head.subject_len
    m.reply_len = head.reply_len
    m.body = m.reply + head.reply_len
    m.header_len = head.header_len
    m.body_len = head.body_len


cdef uint32_t present_expectations(const char* p, size_t n) noexcept nogil:
    cdef const char* line = p + STATUS_LINE_SIZE
    cdef const char* end = p + n
    cdef const char* stop
    cdef size_t size = 0
    cdef uint32_t kind, present = 0
    while True:
        stop = <const char*>memchr(line, c"\n", end - line)
        if stop == NULL:
            return present
        kind = expectation(line, stop - line, &size)
        if kind:
            trim(line + size, stop - 1, &size)
            if size:
                present |= kind
        line = stop + 1


cdef bint is_seq(const char* digits, size_t n, uint64_t seq) noexcept nogil:
    """Do the digits equal the sequence? (Leading zeros are allowed.)"""
    cdef uint64_t value = 0
    cdef size_t i
    if n == 0 or n > DIGITS_MAX:
        return False
    for i in range(n):
        if digits[i] < c"0" or digits[i] > c"9" or value >> 59:
            return False
        value = value * 10 + <uint64_t>(digits[i] - c"0")
    return value == seq


cdef uint32_t failed_expectations(const Message* m, StreamLog log, bytes stream, MessageIds ids) except? 0xFFFFFFFF:
    cdef const char* line = m.body + STATUS_LINE_SIZE
    cdef const char* end = m.body + m.header_len
    cdef const char* stop
    cdef const char* value
    cdef size_t size = 0
    cdef uint32_t kind, failed = 0
    cdef bint holds
    while True:
        stop = <const char*>memchr(line, c"\n", end - line)
        if stop == NULL:
            return failed
        kind = expectation(line, stop - line, &size)
        if kind:
            value = trim(line + size, stop - 1, &size)
            if size == 0:
                holds = True
            elif kind == EXPECTS_STREAM:
                holds = size == <size_t>PyBytes_GET_SIZE(stream) and memcmp(value, PyBytes_AS_STRING(stream), size) == 0
            elif kind == EXPECTS_SEQ:
                holds = is_seq(value, size, log.last_seq)
            elif kind == EXPECTS_SUBJECT_SEQ:
                holds = is_seq(value, size, log.last_of_subject(m.subject, m.subject_len))
            else:
                holds = ids.is_last(value, size)
            if not holds:
                failed |= kind
        line = stop + 1


# --- message ids

cdef enum:
    ARENA_MIN = 1024
    SLOTS = 0xFFFFFFFF              # modulus of slots: an id of the table is less
    SPAN_MAX = 0x7FFFFFFF8          # bytes between head and tail; a slot is unambiguous within this range
    LOOKUP_DROPS = 8                # expired ids that one lookup drops; a steady stream has no more
    RESIZE_DROPS = 8192             # ... and a change of the window: about 1 ms
    PACKED_HEAD = 20                # of a packed id: sequence, time, bytes; all little-endian
    PRUNE_DELAY_SHIFT = 4           # ids may stay for the window >> this longer than needed


cdef inline size_t entry_size(size_t id_size) noexcept nogil:
    return (sizeof(IdEntry) + id_size + 7) & ~<size_t>7


cdef inline uint32_t slot_of(uint64_t place) noexcept nogil:
    return <uint32_t>((place >> 3) % <uint64_t>SLOTS)


cdef uint32_t entry_hash(void* owner, uint32_t slot) noexcept:
    cdef MessageIds ids = <MessageIds>owner
    return ids._at(ids._place(slot)).hash


cdef class MessageIds:
    def __cinit__(self, int64_t window_ns):
        self.window_ns = window_ns
        # Python's hash is seeded per process, so that a client cannot construct ids that collide.
        self.seed = <uint64_t>hash(b"penstock.messageids")
        self.forgotten = INT64_MIN

    def __dealloc__(self):
        free(self.arena)
        id_free(&self.table)
        free(self.last)

    # ------------------------------------------------------------------ for the kernels

    cdef uint64_t seq_of(self, const char* id, size_t n, uint32_t h, int64_t now) except? 0:
        cdef const IdEntry* entry
        if self.count == 0:
            return 0
        if self._at(self.head).ts <= now - self.window_ns:
            self.prune(now, LOOKUP_DROPS)
            if self.count == 0:
                return 0
        entry = self._find(id, n, h)
        return 0 if entry == NULL else entry.seq

    cdef int remember(self, const char* id, size_t n, uint32_t h, uint64_t seq, int64_t ts) except -1:
        cdef size_t size = entry_size(n)
        cdef IdEntry* entry
        if self.window_ns <= 0:
            return 0
        if self.tail - self.head + size > <uint64_t>SPAN_MAX:
            raise MemoryError("the ids of one dedupe window take more than 32 GiB")
        if self.tail - self.base + size > self.capacity:
            self._make_room(size)
        assert self.base <= self.head <= self.tail and self.tail - self.base + size <= self.capacity
        entry = self._at(self.tail)
        entry.seq = seq
        entry.ts = ts
        entry.hash = h
        entry.size = <uint32_t>n
        memcpy(<char*>entry + sizeof(IdEntry), id, n)
        id_put(&self.table, slot_of(self.tail), h, entry_hash, <void*>self)
        self.tail += size
        self.count += 1
        return 0

    cdef int set_last(self, const char* id, size_t n) except -1:
        if n:
            self.last = <char*>array_grow(self.last, &self.last_capacity, n, 1, 32, b"bytes of a message id")
            memcpy(self.last, id, n)
        self.last_size = n
        return 0

    cdef bint is_last(self, const char* id, size_t n) noexcept:
        return n == self.last_size and memcmp(id, self.last, n) == 0

    # ------------------------------------------------------------------ for Python

    def find(self, bytes msg_id not None, int64_t now):
        """The sequence stored under the id within the window before `now` (ns), or 0."""
        cdef const char* id = PyBytes_AS_STRING(msg_id)
        cdef size_t n = <size_t>PyBytes_GET_SIZE(msg_id)
        return self.seq_of(id, n, self.hash_of(id, n), now)

    def add(self, bytes msg_id not None, uint64_t seq, int64_t ts):
        """Adds an id with the sequence `seq`, stored at `ts` (ns), which must not be earlier than the previous one.

        A known id keeps its sequence.
        """
        cdef const char* id = PyBytes_AS_STRING(msg_id)
        cdef size_t n = <size_t>PyBytes_GET_SIZE(msg_id)
        cdef uint32_t h = self.hash_of(id, n)
        if self._find(id, n, h) == NULL:
            self.remember(id, n, h, seq, ts)

    def dump(self):
        """The state, for load()."""
        return self.items(), self.last_id, self.forgotten

    def dump_rest(self):
        """The state but for the entries, for load()."""
        return self.last_id, self.forgotten

    def load(self, list items not None, bytes last_id not None, int64_t forgotten):
        """Takes over the state that dump() returned. An id may be there twice: one expired."""
        cdef bytes msg_id
        cdef const char* id
        cdef size_t n
        for msg_id, seq, ts in items:
            id = PyBytes_AS_STRING(msg_id)
            n = <size_t>PyBytes_GET_SIZE(msg_id)
            self.remember(id, n, self.hash_of(id, n), seq, ts)
        self.note_last(last_id)
        self.forgotten = forgotten

    @property
    def ends(self):
        return self.head, self.tail

    def seq_at(self, uint64_t place):
        """The sequence of the entry at a place between the ends; None when it was dropped."""
        if not self.head <= place < self.tail:
            return None
        return self._at(place).seq

    def read(self, uint64_t place, uint64_t end, uint64_t end_seq, Py_ssize_t most):
        """Entries from a place on, below end and with sequences below end_seq, until they have `most` bytes:
        (bytes for add_packed, the place behind them, their number). None when some were dropped."""
        cdef uint64_t stop = place
        cdef size_t size = 0
        cdef Py_ssize_t count = 0
        cdef const IdEntry* entry
        cdef bytes packed
        cdef char* to
        if place < self.head:
            return None
        end = min(end, self.tail)
        while stop < end and <Py_ssize_t>size < most:
            entry = self._at(stop)
            if entry.seq >= end_seq:
                break
            size += PACKED_HEAD + entry.size
            stop += entry_size(entry.size)
            count += 1
        packed = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
        to = PyBytes_AS_STRING(packed)
        while place < stop:
            entry = self._at(place)
            memcpy(to, &entry.seq, 8)
            memcpy(to + 8, &entry.ts, 8)
            memcpy(to + 16, &entry.size, 4)
            memcpy(to + PACKED_HEAD, <const char*>entry + sizeof(IdEntry), entry.size)
            to += PACKED_HEAD + entry.size
            place += entry_size(entry.size)
        return packed, stop, count

    def add_packed(self, bytes packed not None, Py_ssize_t offset, uint64_t from_seq, Py_ssize_t most):
        """Adds what read() returned, from an offset on, about `most` bytes of it, but nothing below from_seq.
        Returns the offset behind what was added. Raises ValueError for other bytes."""
        cdef const char* data = PyBytes_AS_STRING(packed)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(packed), until
        cdef uint64_t seq
        cdef int64_t ts
        cdef uint32_t n
        if not 0 <= offset <= size:
            raise ValueError(f"offset {offset} in {size} bytes of message ids")
        until = size if most > size - offset else offset + most
        while offset < until:
            if size - offset < PACKED_HEAD:
                raise ValueError(f"{size} bytes of message ids end in the head of one")
            memcpy(&seq, data + offset, 8)
            memcpy(&ts, data + offset + 8, 8)
            memcpy(&n, data + offset + 16, 4)
            offset += PACKED_HEAD
            if <Py_ssize_t>n > size - offset:
                raise ValueError(f"{size} bytes of message ids end in one of {n} bytes")
            if seq >= from_seq:
                self.remember(data + offset, n, self.hash_of(data + offset, n), seq, ts)
            offset += n
        return offset

    @property
    def last_id(self):
        return PyBytes_FromStringAndSize(self.last, <Py_ssize_t>self.last_size)

    def note_last(self, bytes msg_id not None):
        """Sets last_id: a message was stored."""
        self.set_last(PyBytes_AS_STRING(msg_id), <size_t>PyBytes_GET_SIZE(msg_id))

    cpdef Py_ssize_t prune(self, int64_t now, Py_ssize_t most=INT64_MAX) except -1:
        cdef int64_t cutoff = now - self.window_ns
        cdef IdEntry* entry
        cdef Py_ssize_t dropped = 0
        if cutoff > self.forgotten:
            self.forgotten = cutoff
        while self.count and dropped < most:
            entry = self._at(self.head)
            if entry.ts > self.forgotten:
                break
            id_drop(&self.table, slot_of(self.head), entry.hash, entry_hash, <void*>self)
            self.head += entry_size(entry.size)
            self.count -= 1
            dropped += 1
            assert self.head <= self.tail and (self.count != 0) == (self.head < self.tail)
        self._shrink()
        return dropped

    def resize(self, int64_t window_ns, int64_t now):
        """Changes the window; drops ids older than the new one."""
        self.window_ns = window_ns
        self.prune(now, RESIZE_DROPS)

    def next_deadline(self):
        """When (ns) to call prune(); None without ids.

        Somewhat after the oldest id expires: lookups ignore expired ids, and a stream with thousands of
        ids per second must not wake the server for each.
        """
        if self.count == 0:
            return None
        return self._at(self.head).ts + self.window_ns + (self.window_ns >> PRUNE_DELAY_SHIFT)

    def items(self):
        """[(id, sequence, ts)] of the entries, oldest first, with those that expired and were not dropped."""
        cdef list found = []
        cdef uint64_t place = self.head
        cdef IdEntry* entry
        while place < self.tail:
            entry = self._at(place)
            id = PyBytes_FromStringAndSize(<char*>entry + sizeof(IdEntry), <Py_ssize_t>entry.size)
            found.append((id, entry.seq, entry.ts))
            place += entry_size(entry.size)
        return found

    @property
    def memory(self):
        """Allocated bytes."""
        return self.capacity + id_bytes(&self.table)

    def __len__(self):
        return self.count

    # ------------------------------------------------------------------ inside

    cdef IdEntry* _at(self, uint64_t place) noexcept:
        return <IdEntry*>(self.arena + (place - self.base))

    cdef uint64_t _place(self, uint32_t slot) noexcept:
        """The place that a slot denotes: the first one from head on."""
        cdef uint64_t first = slot_of(self.head)
        cdef uint64_t distance = slot - first if slot >= first else slot + <uint64_t>SLOTS - first
        return self.head + (distance << 3)

    cdef uint32_t hash_of(self, const char* id, size_t n) noexcept:
        return <uint32_t>xxh64(id, n, self.seed)

    cdef void fetch_cells(self, uint32_t h) noexcept:
        if self.table.cells.cells != NULL:
            fetch_to_write(&self.table.cells.cells[h & self.table.cells.mask])
        if self.table.old.cells != NULL:
            fetch_to_read(&self.table.old.cells[h & self.table.old.mask])

    cdef void fetch_entries(self, uint32_t h) noexcept:
        cdef const uint32_t* cell = id_first(&self.table.cells, h)
        if cell != NULL:
            fetch_to_read(self._at(self._place(cell[0] - 1)))
        cell = id_first(&self.table.old, h)
        if cell != NULL:
            fetch_to_read(self._at(self._place(cell[0] - 1)))

    cdef IdEntry* _find(self, const char* id, size_t n, uint32_t h) noexcept:
        """The entry of an id, or NULL."""
        cdef IdEntry* entry = self._find_in(&self.table.cells, id, n, h)
        if entry == NULL and self.table.old.cells != NULL:
            entry = self._find_in(&self.table.old, id, n, h)
        return entry

    cdef IdEntry* _find_in(self, const IdCells* cells, const char* id, size_t n, uint32_t h) noexcept:
        cdef const uint32_t* cell = id_first(cells, h)
        cdef IdEntry* entry
        while cell != NULL:
            entry = self._at(self._place(cell[0] - 1))
            if (
                entry.hash == h and entry.size == n and entry.ts > self.forgotten
                and memcmp(<char*>entry + sizeof(IdEntry), id, n) == 0
            ):
                return entry
            cell = id_next(cells, cell)
        return NULL

    cdef int _make_room(self, size_t size) except -1:
        """Makes room for one more entry: reuses the free space at the front if it is at least a quarter."""
        cdef size_t live = <size_t>(self.tail - self.head)
        cdef size_t wanted = live + size
        cdef size_t capacity = self.capacity, grown = 0     # (0: array_grow takes the size it is given)
        if self.head > self.base:
            memmove(self.arena, self.arena + (self.head - self.base), live)
            self.base = self.head
        if wanted + wanted // 4 > capacity:
            capacity = max(wanted + wanted // 2, <size_t>ARENA_MIN)
            # Grows by half, not double: a window has a steady size, and this is most of its memory.
            self.arena = <char*>array_grow(self.arena, &grown, capacity, 1, capacity, b"bytes of message ids")
            self.capacity = grown
        return 0

    cdef int _shrink(self) except -1:
        """Frees memory when little of it is used."""
        cdef size_t live = <size_t>(self.tail - self.head)
        if self.count == 0:
            free(self.arena)
            id_free(&self.table)
            self.arena = NULL
            self.capacity = 0
            self.base = self.head = self.tail
            return 0
        if self.capacity > <size_t>ARENA_MIN and live < self.capacity // 4:
            memmove(self.arena, self.arena + (self.head - self.base), live)
            self.base = self.head
            self.arena = <char*>array_shrink(self.arena, &self.capacity, max(live * 2, <size_t>ARENA_MIN), 1)
        return id_shrink(&self.table, entry_hash, <void*>self)

# cython: auto_pickle=False
"""The next messages of a consumer's filters, at a cost that depends on the number of matches.

There are three ways to fill the run, the list of sequences that next() returns:

    look    examines message by message from the position on, if the filters match one in thirty or more
    merge   a heap of the matching subjects, from the log's subject index, each with its next message, which
            advances along the log's chains. Messages in between cost nothing
    follow  at the end of the log, appended() adds new matches to the run without a search

A cursor begins with looking, and changes to merging when that finds too little (literals merge immediately). A heap
covers the messages that the log had when it was built; after those, it is built again. While it is not exhausted, the
run is filled long before its end, for prefetching (record_reads.pyx).

Invariants: all live matches from the position up to `upto` are in the run (with `following`:
to the end of the log); a run ascends. Messages that are removed later stay in the run and are skipped. A chain
continues from an entry that was live when the heap was built, whether it still is or not; if compaction has dropped
it, from the subject's first message.

Memory: a run has at most RUN_MAX sequences (8 KiB), and at most 512 bytes while it is empty; a heap has 16 bytes per
matching subject, all heaps of the process together HEAPS_SIZE_MAX. A filter of more subjects examines
every message, LOOK_ONCE at a time, so that others are served. An exhausted heap is freed.
Rejected: a bitmap of matching messages (to build it, all chains have to be walked at once); a list of
all matches (it grows with the stream); bloom filters of blocks' subjects (with a million subjects
each block has some of any filter).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, qsort
from libc.string cimport memcmp, memcpy, memmove

from penstock.kernels.base.memory cimport array_grow, array_new
from penstock.kernels.routing.grammar cimport filter_matches, has_wildcard
from penstock.kernels.log.log_core cimport HINTS
from penstock.kernels.log.message_block cimport ENTRY_DEAD, NEXT_FAR, Entry, MessageBlock
from penstock.kernels.base.prefetch cimport fetch_to_read
from penstock.kernels.log.records cimport RECORD_OK, Record
from penstock.kernels.log.stream_log cimport StreamLog
from penstock.kernels.log.subject_state cimport Subject

cdef enum:
    RUN_MAX = 1024                  # sequences of a run that follows
    RUN_FILL = 1024                 # sequences searched at once
    RUN_LOW = 2                     # the run is filled again when 1/RUN_LOW of it is left
    RUN_LEAST = 16                  # initial capacity
    RUN_IDLE = 64                   # capacity that an empty run retains
    LOOK_ONCE = 65536               # messages examined before others are served
    LOOK_STEP = 1024
    LOOKS_PER_MATCH = 32            # a match justifies examining this many messages
    PATIENCE = 2048                 # messages examined without a match before merging begins
    LOOK_FILTERS = 8                # with more filters, merging begins immediately
    HEAPS_SIZE_MAX = 67108864
    FETCH_AHEAD = 16                # subjects

# Bytes of all heaps.
cdef size_t heaps_size = 0


cdef int compare_ids(const void* a, const void* b) noexcept nogil:
    cdef uint32_t left = (<const uint32_t*>a)[0], right = (<const uint32_t*>b)[0]
    return (left > right) - (left < right)


cdef size_t prefix_of(bytes f):
    """Bytes of a filter before its first wildcard."""
    cdef size_t n = 0
    for token in f.split(b"."):
        if token == b"*" or token == b">":
            return n
        n += <size_t>len(token) + 1
    return <size_t>len(f)


cdef class FilterCursor:
    def __cinit__(self, StreamLog log not None, list filters not None):
        cdef size_t i
        self.log = log
        self.filters = [bytes(f) for f in filters]
        self.filter_count = len(filters)
        self.prefixes = <size_t*>array_new(self.filter_count, sizeof(size_t), b"filters")
        self.run_max = RUN_MAX
        self.run_fill = RUN_FILL
        self.look_once = LOOK_ONCE
        self.patience = PATIENCE
        self.heaps_max = HEAPS_SIZE_MAX
        self.literal = True
        for i, f in enumerate(self.filters):
            self.prefixes[i] = prefix_of(f)
            if has_wildcard(PyBytes_AS_STRING(f), <size_t>PyBytes_GET_SIZE(f)):
                self.literal = False

    def __dealloc__(self):
        free(self.prefixes)
        free(self.run)
        self._drop_heads()

    cdef uint64_t next(self, uint64_t position) except? 0:
        cdef size_t looked = 0
        cdef uint64_t seq
        self.searching = False
        if self.heads != NULL and self.run_at < self.run_count and \
                self.run_count - self.run_at < self.run_fill // RUN_LOW:
            self._merge(self.upto + 1)      # early, so that prefetching sees the sequences before it needs them
        while True:
            while self.run_at < self.run_count:
                seq = self.run[self.run_at]
                if seq >= position and (self.removals == self.log.removals or self._is_live(seq)):
                    return seq
                self.run_at += 1
            if self.following:
                self.run_at = self.run_count = 0
                self.removals = self.log.removals
                if self.run_capacity > RUN_IDLE:
                    free(self.run)
                    self.run = NULL
                    self.run_capacity = 0
                return 0
            if self.upto >= self.log.last_seq and not self.attached:
                return 0
            if looked >= self.look_once:
                self.searching = True
                return 0
            self._refill(position, &looked)

    cdef int appended(self, uint64_t seq) except -1:
        if not self.following:
            return 0
        if self.run_count - self.run_at >= self.run_max:
            self.following = False
            self.upto = seq - 1
            return 0
        return self._put(seq)

    cdef int attach(self, bint attached) except -1:
        self.attached = attached
        if self.following and not attached:
            self.following = False
            self.upto = self.log.last_seq
        return 0

    cdef uint64_t count(self, uint64_t seq) except? 0xFFFFFFFFFFFFFFFF:
        cdef uint32_t* ids
        cdef size_t n = 0
        cdef bint own = False
        cdef uint64_t found
        if seq > self.log.last_seq:
            return 0
        ids = self._subjects(&n, &own)
        try:
            found = self.log._count_subjects(ids, n, seq)
        finally:
            if own:
                free(ids)
        if found * LOOKS_PER_MATCH < self.log.messages:
            self.debt = self.patience + 1       # looking would find too little
        return found

    # --- the run

    cdef int _put(self, uint64_t seq) except -1:
        if self.run_count == self.run_capacity:
            if self.run_at:
                self.run_count -= self.run_at
                memmove(self.run, self.run + self.run_at, self.run_count * sizeof(uint64_t))
                self.run_at = 0
            else:
                self.run = <uint64_t*>array_grow(
                    self.run, &self.run_capacity, self.run_count + 1, sizeof(uint64_t), RUN_LEAST, b"messages of a run"
                )
        self.run[self.run_count] = seq
        self.run_count += 1
        return 0

    cdef int _refill(self, uint64_t position, size_t* looked) except -1:
        """Fills the empty run with the next matches, or advances `upto`."""
        cdef uint64_t start = position if position > self.upto else self.upto + 1
        self.run_at = self.run_count = 0
        self.removals = self.log.removals
        if start > self.log.last_seq:
            self.upto = start - 1
            self.following = self.attached
            self._drop_heads()
            return 0
        if self.heads != NULL and start > self.heads_upto:
            self._drop_heads()
        if self.heads == NULL and start > self.look_until and (
            self.literal or self.filter_count > LOOK_FILTERS or self.debt > self.patience
        ):
            self._build(start)
        if self.heads != NULL:
            self._merge(start)
        else:
            self._look(start, looked)
        self.following = self.attached and self.upto >= self.log.last_seq
        return 0

    cdef bint _matches(self, const Record* r) noexcept:
        cdef size_t i, n, prefix
        cdef const char* f
        for i in range(self.filter_count):
            f = PyBytes_AS_STRING(<bytes>self.filters[i])
            n = <size_t>PyBytes_GET_SIZE(<bytes>self.filters[i])
            prefix = self.prefixes[i]
            if r.subject_len >= prefix and memcmp(f, r.subject, prefix) == 0 and \
                    filter_matches(f, n, r.subject, r.subject_len):
                return True
        return False

    cdef int _look(self, uint64_t seq, size_t* looked) except -1:
        """Examines messages from seq on until the run has enough matches."""
        cdef StreamLog log = self.log
        cdef size_t i = log._block_from(seq), at, n = 0
        cdef MessageBlock block
        cdef Record r
        cdef int status = RECORD_OK
        self.upto = seq - 1
        while i < <size_t>len(log.blocks) and status == RECORD_OK:
            block = <MessageBlock>log.blocks[i]
            if block.live:
                for at in range(block.find_from(seq), block.count):
                    if n >= LOOK_STEP or self.run_count >= self.run_fill:
                        looked[0] += n
                        self.debt += <int64_t>n - <int64_t>(self.run_count * LOOKS_PER_MATCH)
                        if self.debt < 0:
                            self.debt = 0
                        return 0
                    n += 1
                    if block.entries[at].offset & <uint32_t>ENTRY_DEAD:
                        continue
                    self.upto = block.seq_at(at)
                    status = log._decode(block, at, &r)
                    if status != RECORD_OK:
                        log._lose(block, at, status)     # the blocks may have changed
                        break
                    if self._matches(&r):
                        self._put(self.upto)
            i += 1
        looked[0] += n
        if status == RECORD_OK:
            self.upto = log.last_seq
        return 0

    # --- the heap

    cdef uint32_t* _subjects(self, size_t* count, bint* own) except? NULL:
        """The matching subjects, each once; `own`: the caller must free the array, otherwise it is valid until
        the next match()."""
        cdef uint32_t* ids = NULL
        cdef size_t n, capacity = 0, total = 0, i, kept = 0
        if self.filter_count == 1:
            own[0] = False
            f = <bytes>self.filters[0]
            count[0] = self.log.state.match(PyBytes_AS_STRING(f), <size_t>PyBytes_GET_SIZE(f))
            return self.log.state.matched
        own[0] = True
        count[0] = 0
        for f in self.filters:
            n = self.log.state.match(PyBytes_AS_STRING(f), <size_t>PyBytes_GET_SIZE(f))
            if n == 0:
                continue
            try:
                ids = <uint32_t*>array_grow(ids, &capacity, total + n, sizeof(uint32_t), n, b"subjects")
            except MemoryError:
                free(ids)
                raise
            memcpy(ids + total, self.log.state.matched, n * sizeof(uint32_t))
            total += n
        if total:
            qsort(ids, total, sizeof(uint32_t), &compare_ids)
            for i in range(total):
                if kept == 0 or ids[i] != ids[kept - 1]:
                    ids[kept] = ids[i]
                    kept += 1
        count[0] = kept
        return ids

    cdef int _build(self, uint64_t seq) except -1:
        """Builds the heap of the matches from seq on, unless it would be too large."""
        global heaps_size
        cdef StreamLog log = self.log
        cdef size_t n = 0, i, size
        cdef bint own = False
        cdef uint32_t* ids = self._subjects(&n, &own)
        cdef Subject* s
        cdef uint64_t at
        try:
            self.debt = 0
            size = (n if n else 1) * sizeof(Head)
            if heaps_size + size > self.heaps_max:
                self.look_until = seq + <uint64_t>n * LOOKS_PER_MATCH
                return 0
            self.heads = <Head*>array_new(n, sizeof(Head), b"subjects")
            heaps_size += size
            self.heads_size = size
            self.heads_upto = log.last_seq
            for i in range(n):
                if i + FETCH_AHEAD < n:
                    fetch_to_read(&log.state.items[ids[i + FETCH_AHEAD]])
                s = &log.state.items[ids[i]]
                if s.last < seq:
                    continue
                at = s.first
                if at < seq:
                    at = log._along(s, seq)
                if at:
                    fetch_to_read(log._entry(at))
                    self.heads[self.head_count].seq = at
                    self.heads[self.head_count].subject = ids[i]
                    self.head_count += 1
        except BaseException:
            self._drop_heads()
            raise
        finally:
            if own:
                free(ids)
        i = self.head_count // 2
        while i:
            i -= 1
            self._sink(i)
        return 0

    cdef void _sink(self, size_t at) noexcept:
        """Moves a head down until no child is earlier."""
        cdef Head moving = self.heads[at]
        cdef size_t child = 2 * at + 1
        while child < self.head_count:
            if child + 1 < self.head_count and self.heads[child + 1].seq < self.heads[child].seq:
                child += 1
            if self.heads[child].seq >= moving.seq:
                break
            self.heads[at] = self.heads[child]
            at = child
            child = 2 * at + 1
        self.heads[at] = moving

    cdef int _merge(self, uint64_t seq) except -1:
        cdef uint64_t found, following
        cdef Entry* entry
        while self.head_count and self.run_count - self.run_at < self.run_fill:
            found = self.heads[0].seq
            entry = self.log._entry(found)
            if found >= seq and entry != NULL and not entry.offset & <uint32_t>ENTRY_DEAD:
                self._put(found)
                self.upto = found
            following = self._hop(self.heads[0].subject, found, entry)
            if following:
                self.heads[0].seq = following
            else:
                self.head_count -= 1
                if self.head_count:
                    self.heads[0] = self.heads[self.head_count]
            if self.head_count:
                self._sink(0)
        if self.head_count == 0:
            self.upto = self.heads_upto
            self._drop_heads()
        return 0

    cdef uint64_t _hop(self, uint32_t subject, uint64_t seq, const Entry* entry) except? 0:
        """The message after seq, with its entry, on a subject's chain, dead or live; 0 when the heap doesn't cover
        it."""
        cdef Subject* s
        cdef uint64_t found
        if entry != NULL and entry.next_delta != <uint32_t>NEXT_FAR:
            if entry.next_delta == 0 or seq + entry.next_delta > self.heads_upto:
                if seq > self.log.hints[subject % HINTS].seq or subject + 1 != self.log.hints[subject % HINTS].subject:
                    self.log.hints[subject % HINTS].subject = subject + 1
                    self.log.hints[subject % HINTS].seq = seq
                return 0
            seq += entry.next_delta
            # Prefetch: it is needed when it reaches the top of the heap.
            fetch_to_read(self.log._entry(seq))
            return seq
        # Dropped by compaction, damaged on disk, or too far for a link. The slot may have another subject by now.
        if not self._takes(subject):
            return 0
        s = &self.log.state.items[subject]
        found = self.log._along(s, seq + 1) if seq < s.last else 0
        return found if found <= self.heads_upto else 0

    cdef bint _takes(self, uint32_t subject) noexcept:
        """Does the slot still have a subject, and one that matches?"""
        cdef Subject* s
        cdef Record r
        if subject >= self.log.state.used:
            return False
        s = &self.log.state.items[subject]
        if s.count == 0:
            return False
        r.subject = self.log.state.arena + s.text
        r.subject_len = s.text_len
        return self._matches(&r)

    cdef bint _is_live(self, uint64_t seq) noexcept:
        cdef Entry* entry = self.log._entry(seq)
        return entry != NULL and not entry.offset & <uint32_t>ENTRY_DEAD

    cdef void _drop_heads(self) noexcept:
        global heaps_size
        free(self.heads)
        self.heads = NULL
        self.head_count = 0
        heaps_size -= self.heads_size
        self.heads_size = 0

    # --- for Python: tests

    def set_bounds(self, *, size_t run_max=RUN_MAX, size_t run_fill=RUN_FILL, size_t look_once=LOOK_ONCE,
                   int64_t patience=PATIENCE, size_t heaps_max=HEAPS_SIZE_MAX):
        self.run_max = run_max
        self.run_fill = run_fill
        self.look_once = look_once
        self.patience = patience
        self.heaps_max = heaps_max

    def peek(self, uint64_t position):
        cdef uint64_t seq = self.next(position)
        return None if self.searching else seq

    def num_from(self, uint64_t seq):
        return self.count(seq)

    def memory(self):
        """Allocated bytes."""
        return self.run_capacity * sizeof(uint64_t) + self.heads_size


def heaps_memory():
    """Bytes of all heaps of the process."""
    return heaps_size

# cython: auto_pickle=False
"""Chains of subjects in a log: counting along them, and merging those of a block's index.

Counting: the number of messages of a subject from a sequence on.

A chain is walked from the subject's first message to the sequence, or from there to its last one, whichever
is nearer; within a block each hop is one memory load, without a search. If a part of the chain is damaged on disk, the
log's own search is used.

The chains of many subjects are walked concurrently, IN_FLIGHT of them: an entry is in no cache, and while one is
prefetched the others advance (one after the other takes several times as long).

If they have many messages, all are walked in one pass instead, in the order of the log: a bit for each sequence marks
that a chain passes there, and its entry passes the mark on. So entries are read front to back: 675,000 hops take some
14 ms of CPU time. The bits (1.25 MB for ten million messages) exist only during the count.

Rejected: backward links, so that the count can begin at the nearer end (4 more bytes per message); counts of subjects
per block (their memory grows with both, and every removal has to update them).

Merging: adds the subjects of a block, as its index lists them, to the log's subject state.

Theory of operation. A stream of ten million messages on a million subjects has some nine million rows in its blocks'
indexes, and each touches four places that are in no cache: the table's cell, the subject, its text, and the entry of
its last message, which links to the block's first one. So ROWS_PER_STEP rows are processed together, one step after
the other: their cache misses overlap.

Invariants: a prefetch changes no state; each row is then merged by itself, in order. A row that contradicts its block
is detected before any row of its group is merged.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from penstock.kernels.base.id_table cimport id_first
from penstock.kernels.base.memory cimport array_zeroed
from penstock.kernels.log.log_core cimport LogCore
from penstock.kernels.log.message_block cimport ENTRY_DEAD, NEXT_FAR, Entry, MessageBlock, SubjectRow
from penstock.kernels.log.subject_state cimport Subject, SubjectState
from penstock.kernels.base.prefetch cimport fetch_to_read, fetch_to_write


# --- subject chains

cdef extern from *:
    int lowest_bit "__builtin_ctzll"(uint64_t word) noexcept nogil

cdef enum:
    BROKEN = -1
    WHOLE = 0
    IN_FLIGHT = 32
    SEPARATE_WALK_MIN = 4096        # messages; a subject with more is counted separately: see LogCore._along
    SWEEP_HOP = 512                 # examining this many bits costs as much as a hop elsewhere in memory
    SWEEP_MAX = 0x10000000          # bits: 32 MiB

# A walk along a subject's chain, from its first message to where the count begins.
cdef struct Walker:
    Subject* subject
    uint64_t at
    uint64_t before                 # live messages passed
    Entry* entry                    # of `at`; invalid after blocks change


cdef int walk(LogCore log, uint64_t at, uint64_t end, uint64_t* count) except? -2:
    """Counts the live messages of the chain that begins at `at` and are below `end`."""
    cdef Entry* entry
    cdef MessageBlock block
    cdef uint64_t first, last
    count[0] = 0
    while at < end:
        entry = log._entry(at)
        if entry == NULL:
            return BROKEN
        block = log.chain_block
        first, last = block.first_seq, block.last_seq
        while True:
            count[0] += not entry.offset & <uint32_t>ENTRY_DEAD
            if entry.next_delta == 0:
                return WHOLE
            if entry.next_delta == <uint32_t>NEXT_FAR:
                return BROKEN
            at += entry.next_delta
            if at >= end or at > last or block.seqs != NULL:
                break
            entry = &block.entries[at - first]
    return WHOLE


cdef uint64_t count_from(LogCore log, Subject* s, uint64_t seq) except? 0xFFFFFFFFFFFFFFFF:
    cdef uint64_t count = 0, at
    if seq <= s.first:
        return s.count
    if seq > s.last:
        return 0
    if seq - s.first < s.last - seq and walk(log, s.first, seq, &count) == WHOLE:
        return s.count - count
    at = log._along(s, seq)
    if at == 0 or walk(log, at, s.last + 1, &count) == WHOLE:
        return count if at else 0
    count = 0
    while at:
        count += 1
        at = 0 if at >= s.last else log._along(s, at + 1)
    return count


cdef inline int refetch(LogCore log, Walker* walkers, size_t n) except -1:
    """Finds the entries again, after something that may have changed the blocks."""
    cdef size_t i
    for i in range(n):
        walkers[i].entry = log._entry(walkers[i].at)
    return 0


cdef uint64_t count_many(LogCore log, const uint32_t* ids, size_t n, uint64_t seq) except? 0xFFFFFFFFFFFFFFFF:
    cdef uint64_t total, span = seq - log.first_seq
    if seq > log.first_seq and span <= SWEEP_MAX and log.lost == 0 and \
            sum_counts(log.state.items, ids, n) > span // SWEEP_HOP and sweep(log, ids, n, seq, &total) == WHOLE:
        return total
    return walk_many(log, ids, n, seq)


cdef int sweep(LogCore log, const uint32_t* ids, size_t n, uint64_t seq, uint64_t* total) except? -2:
    """count_many() in one pass over the entries before `seq`; BROKEN when a chain can't be followed."""
    cdef Subject* items = log.state.items
    cdef Subject* s
    cdef uint64_t base = log.first_seq, at, before = 0
    cdef uint64_t* bits = <uint64_t*>array_zeroed(
        <size_t>((seq - base) // 64 + 1), sizeof(uint64_t), b"words to count in"
    )
    cdef size_t i
    cdef int status = WHOLE
    total[0] = 0
    for i in range(n):
        if i + IN_FLIGHT < n:
            fetch_to_read(&items[ids[i + IN_FLIGHT]])
        s = &items[ids[i]]
        if s.last < seq:
            continue
        total[0] += s.count
        if s.first < seq:
            if s.first < base:
                status = BROKEN
                break
            at = s.first - base
            bits[at // 64] |= <uint64_t>1 << (at % 64)
    if status == WHOLE:
        status = follow_bits(log, bits, base, seq, &before)
    free(bits)
    total[0] -= before
    return status


cdef int follow_bits(LogCore log, uint64_t* bits, uint64_t base, uint64_t seq, uint64_t* live) noexcept:
    """Passes each bit along its chain, up to `seq`; counts the live messages that have one."""
    cdef uint64_t word, at, target
    cdef size_t i, words = <size_t>((seq - base) // 64 + 1), next_block = log._block_from(base)
    cdef MessageBlock block = None
    cdef uint64_t first = 0, last = 0
    cdef Py_ssize_t found
    cdef Entry* entry
    live[0] = 0
    for i in range(words):
        word = bits[i]
        while word:
            at = base + i * 64 + lowest_bit(word)
            while block is None or at > last:
                if next_block == <size_t>len(log.blocks):
                    return BROKEN
                block = <MessageBlock>log.blocks[next_block]
                first, last = block.first_seq, block.last_seq
                next_block += 1
            found = <Py_ssize_t>(at - first) if block.seqs == NULL and at >= first else block.find(at)
            if found < 0:
                return BROKEN
            entry = &block.entries[found]
            if entry.next_delta == 0 or entry.next_delta == <uint32_t>NEXT_FAR:
                return BROKEN
            live[0] += not entry.offset & <uint32_t>ENTRY_DEAD
            target = at + entry.next_delta
            if target < seq:
                bits[(target - base) // 64] |= <uint64_t>1 << ((target - base) % 64)
            # (the entry may have passed it on within this word)
            word = bits[i] & (<uint64_t>0xFFFFFFFFFFFFFFFE << ((at - base) % 64))
    return WHOLE


cdef uint64_t walk_many(LogCore log, const uint32_t* ids, size_t n, uint64_t seq) except? 0xFFFFFFFFFFFFFFFF:
    cdef Walker[IN_FLIGHT] walkers
    cdef Walker* w
    cdef Subject* s
    cdef Subject* items = log.state.items
    cdef size_t active = 0, taken = 0, i
    cdef uint64_t total = 0
    while True:
        while active < IN_FLIGHT and taken < n:
            s = &items[ids[taken]]
            if taken + IN_FLIGHT < n:
                fetch_to_read(&items[ids[taken + IN_FLIGHT]])
            taken += 1
            if s.first >= seq:
                total += s.count
            elif s.last >= seq:
                if s.count > SEPARATE_WALK_MIN:
                    total += count_from(log, s, seq)
                    refetch(log, walkers, active)
                    continue
                w = &walkers[active]
                active += 1
                w.subject, w.at, w.before, w.entry = s, s.first, 0, log._entry(s.first)
                fetch_to_read(w.entry)
        if active == 0:
            return total
        i = 0
        while i < active:
            w = &walkers[i]
            s = w.subject
            if w.entry != NULL and w.entry.next_delta != <uint32_t>NEXT_FAR:
                w.before += not w.entry.offset & <uint32_t>ENTRY_DEAD
                w.at += w.entry.next_delta
                if w.entry.next_delta and w.at < seq:
                    w.entry = log._entry(w.at)
                    fetch_to_read(w.entry)
                    i += 1
                    continue
                total += s.count - w.before
                active -= 1
                w[0] = walkers[active]
            else:
                active -= 1
                w[0] = walkers[active]
                total += count_from(log, s, seq)
                refetch(log, walkers, active)


cdef uint64_t sum_counts(const Subject* items, const uint32_t* ids, size_t n) noexcept:
    cdef size_t i
    cdef uint64_t total = 0
    for i in range(n):
        if i + IN_FLIGHT < n:
            fetch_to_read(&items[ids[i + IN_FLIGHT]])
        total += items[ids[i]].count
    return total


# --- subject rows

cdef enum:
    ROWS_PER_STEP = 32

cdef struct Row:
    const char* text
    SubjectRow row
    uint32_t hash
    uint32_t slot                   # of the cell where the search begins


cdef int merge_subject(LogCore log, const char* text, size_t n, uint64_t first, uint64_t last,
                       uint64_t count) except -1:
    return merge_into(log, log.state.intern(text, n), first, last, count)


cdef inline int merge_into(LogCore log, Subject* s, uint64_t first, uint64_t last, uint64_t count) except -1:
    if s.count:
        log._link(s.last, first)
    else:
        s.first = first
    s.last = last
    s.count += count
    return 0


cdef int merge_rows(LogCore log, MessageBlock block) except -1:
    cdef Row[ROWS_PER_STEP] rows
    cdef SubjectState state = log.state
    cdef const char* p = <const char*>block.subject_rows
    cdef size_t left = len(block.subject_rows), n, i
    cdef SubjectRow* row
    while left >= sizeof(SubjectRow):
        n = 0
        while n < ROWS_PER_STEP and left >= sizeof(SubjectRow):
            row = &rows[n].row
            memcpy(row, p, sizeof(SubjectRow))
            p += sizeof(SubjectRow)
            left -= sizeof(SubjectRow)
            if row.text_len > left or row.first > row.last or row.last >= block.count or row.count == 0:
                raise ValueError(f"the index of block {block.number} contradicts itself")
            rows[n].text = p
            rows[n].hash = state.hash_of(p, row.text_len)
            if state.table.cells.cells != NULL:
                fetch_to_write(&state.table.cells.cells[rows[n].hash & state.table.cells.mask])
            p += row.text_len
            left -= row.text_len
            n += 1
        prefetch_rows(log, state, rows, n)
        for i in range(n):
            row = &rows[i].row
            merge_into(log, state.intern_hashed(rows[i].text, row.text_len, rows[i].hash), block.seq_at(row.first),
                       block.seq_at(row.last), row.count)
    block.subject_rows = None
    return 0


cdef void prefetch_rows(LogCore log, SubjectState state, Row* rows, size_t n) noexcept:
    """Prefetches subjects, texts and last messages of rows whose cells were prefetched. If a cell has another subject
    of the same hash, the search continues without prefetching."""
    cdef size_t i
    cdef const Subject* s
    cdef const uint32_t* cell
    for i in range(n):
        cell = id_first(&state.table.cells, rows[i].hash)
        rows[i].slot = cell[0] if cell != NULL else 0
        if rows[i].slot:
            fetch_to_write(&state.items[rows[i].slot - 1])
    for i in range(n):
        if rows[i].slot:
            s = &state.items[rows[i].slot - 1]
            fetch_to_read(state.arena + s.text)
            if s.count:
                fetch_to_write(log._entry(s.last))

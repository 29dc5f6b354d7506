# cython: auto_pickle=False
"""The subjects of a block, as its index keeps them, on their way into the log's subject state.

Theory of operation. A stream of ten million messages on a million subjects has some nine million rows in its blocks'
indexes, and each touches four places that are in no cache: the table's cell, the subject, its text, and the entry of
its last message, which links to the block's first one. So AT_ONCE rows are taken together, and go through these
steps side by side: while one waits for memory, the others ask for theirs.

Invariants: asking ahead changes nothing; each row is then merged by itself, in order. A row that contradicts its block
is found before anything of its handful is merged.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from penstock.kernels.log.message_block cimport SubjectRow
from penstock.kernels.routing.prefetch cimport fetch_to_read, fetch_to_write
from penstock.kernels.log.subject_state cimport Subject, SubjectState

cdef enum:
    AT_ONCE = 32

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
    cdef Row[AT_ONCE] rows
    cdef SubjectState state = log.state
    cdef const char* p = <const char*>block.subject_rows
    cdef size_t left = len(block.subject_rows), n, i
    cdef SubjectRow* row
    while left >= sizeof(SubjectRow):
        n = 0
        while n < AT_ONCE and left >= sizeof(SubjectRow):
            row = &rows[n].row
            memcpy(row, p, sizeof(SubjectRow))
            p += sizeof(SubjectRow)
            left -= sizeof(SubjectRow)
            if row.text_len > left or row.first > row.last or row.last >= block.count or row.count == 0:
                raise ValueError(f"the index of block {block.number} contradicts itself")
            rows[n].text = p
            rows[n].hash = state.hash_of(p, row.text_len)
            fetch_to_write(&state.table[rows[n].hash & state.table_mask])
            p += row.text_len
            left -= row.text_len
            n += 1
        fetch_what_they_need(log, state, rows, n)
        for i in range(n):
            row = &rows[i].row
            merge_into(log, state.intern_hashed(rows[i].text, row.text_len, rows[i].hash), block.seq_at(row.first),
                       block.seq_at(row.last), row.count)
    block.subject_rows = None
    return 0


cdef void fetch_what_they_need(LogCore log, SubjectState state, Row* rows, size_t n) noexcept:
    """Subjects, texts and last messages of rows whose cells are on their way. Where a cell holds another subject of
    the same hash, the search goes on without help."""
    cdef size_t i
    cdef const Subject* s
    for i in range(n):
        rows[i].slot = state.table[rows[i].hash & state.table_mask]
        if rows[i].slot:
            fetch_to_write(&state.items[rows[i].slot - 1])
    for i in range(n):
        if rows[i].slot:
            s = &state.items[rows[i].slot - 1]
            fetch_to_read(state.arena + s.text)
            if s.count:
                fetch_to_write(log._entry(s.last))

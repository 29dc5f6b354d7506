"""Compaction: drops removed messages from closed blocks, and merges small blocks.

A block is rewritten when more than half of its bytes belong to removed messages; clean small neighbours join it.
Entries are dropped with their records, so links to them are redirected to the next entry of the chain. Tombstones
of a rewritten block that other blocks still need (the record of a removed message still exists) are moved
to the open block.

Ordering for the store: write the open block's new bytes, then replace the old file by the rewritten one, then delete
the files of the blocks that joined it. A crash in between leaves some of those files; the rewritten block begins
with a control record of the numbers it replaces, so that restore() ignores them.

Invariants: every live message keeps its sequence and its bytes; a chain has the same live messages
before and after.
Rejected: rewriting a block because half of it are tombstones (a block of needed ones would be copied forever); they
are checked again after enough other blocks have changed.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from penstock.kernels.base.memory cimport array_new
from penstock.kernels.log.message_block cimport ENTRY_DEAD, ENTRY_NONE, NEXT_FAR, SPAN_MAX, MessageBlock, RemovedRange
from penstock.kernels.log.records cimport KIND_FLOOR, KIND_REMOVED, KIND_REPLACES, RECORD_OK, RECORD_OVERHEAD, Record
from penstock.kernels.log.stream_log cimport StreamLog


def compact(StreamLog log not None, size_t most=1):
    """Rewrites up to `most` blocks; see the .pyi."""
    cdef list done = []
    cdef MessageBlock block
    queue_obsolete_tombstones(log)
    while log.sparse and <size_t>len(done) < most:
        block = <MessageBlock>log.sparse.pop(0)
        block.queued = False
        if block is log.tail or block not in log.blocks or not wasteful(block, False):
            continue
        done.append(rewrite(log, block))
        log.rewrites += 1
    return done


def rewrite_block(StreamLog log not None, uint64_t number):
    """Rewrites a closed block unconditionally; see the .pyi."""
    cdef MessageBlock block
    for block in log.blocks:
        if block.number == number and block is not log.tail:
            log.rewrites += 1
            return [rewrite(log, block)]
    return []


cdef bint wasteful(MessageBlock block, bint count_tombstones) noexcept:
    """Is more than half of a block unused? Tombstones count as used unless `count_tombstones` is set."""
    cdef uint64_t used = block.live_bytes
    if not count_tombstones:
        used += <uint64_t>block.removed_count * RECORD_OVERHEAD
    return used * 2 < block.size


cdef int queue_obsolete_tombstones(StreamLog log) except -1:
    """Queues blocks that are mostly obsolete tombstones. It examines all blocks, so it runs rarely."""
    cdef MessageBlock block
    cdef RemovedRange* needed
    cdef size_t count = 0
    if log.rewrites - log.tombstones_checked_at <= <uint64_t>len(log.blocks) // 2:
        return 0
    log.tombstones_checked_at = log.rewrites
    for block in log.blocks:
        if block is log.tail or block.queued or not block.removed_count or not wasteful(block, True):
            continue
        needed = needed_tombstones(log, block, &count)
        if (block.live_bytes + <uint64_t>count * RECORD_OVERHEAD) * 2 < block.size:
            free(block.removed)
            block.removed = needed
            block.removed_count = block.removed_capacity = count
            block.queued = True
            log.sparse.append(block)
        else:
            free(needed)
    return 0


cdef RemovedRange* needed_tombstones(StreamLog log, MessageBlock block, size_t* count) except NULL:
    """The tombstones of a block that other blocks need; the caller frees the array."""
    cdef RemovedRange* needed = <RemovedRange*>array_new(block.removed_count, sizeof(RemovedRange), b"tombstones")
    cdef RemovedRange* one
    cdef size_t i
    count[0] = 0
    try:
        for i in range(block.removed_count):
            one = &block.removed[i]
            if tombstone_needed(log, block, one.first, one.last):
                needed[count[0]] = one[0]
                count[0] += 1
    except BaseException:
        free(needed)
        raise
    return needed


cdef bint tombstone_needed(StreamLog log, MessageBlock holder, uint64_t low, uint64_t high) except -1:
    """Is a record of this removed range still in a block other than the tombstone's own?"""
    cdef size_t i, at
    cdef MessageBlock block
    if high < log.first_seq:
        return False
    i = log._block_from(low if low > log.first_seq else log.first_seq)
    while i < <size_t>len(log.blocks):
        block = <MessageBlock>log.blocks[i]
        if block.first_seq > high:
            return False
        if block is not holder:
            at = block.find_from(low)
            while at < block.count and block.seq_at(at) <= high:
                if block.entries[at].offset != <uint32_t>ENTRY_NONE:
                    return True
                at += 1
        i += 1
    return False


cdef object rewrite(StreamLog log, MessageBlock block):
    """Merges a group of blocks into one, or none: (block or None, numbers of the files to delete)."""
    cdef Py_ssize_t i = log.blocks.index(block)
    cdef Py_ssize_t low = i, high = i + 1
    cdef MessageBlock source, made
    cdef uint64_t size = block.live_bytes, replaced = 0
    cdef list gone
    # Tombstones that other blocks need go to the open block, so it is not rewritten; a batch in it is incomplete.
    assert block.closed and not log.in_batch
    while low > 0 and joins(log, <MessageBlock>log.blocks[low - 1], block, size):
        low -= 1
        size += (<MessageBlock>log.blocks[low]).size
    while high < <Py_ssize_t>len(log.blocks) and joins(log, <MessageBlock>log.blocks[high], block, size):
        size += (<MessageBlock>log.blocks[high]).size
        high += 1
    carry_tombstones(log, block)
    relink(log, block)
    made = MessageBlock((<MessageBlock>log.blocks[low]).number, (<MessageBlock>log.blocks[low]).first_seq)
    for source in log.blocks[low:high]:
        replaced = max(replaced, max(source.number, source.replaces_upto))
    if log.durable and replaced > made.number:
        made.append_tombstone(KIND_REPLACES, made.number, replaced, 0)
    for source in log.blocks[low:high]:
        copy_live(log, source, made)
    made.closed = True
    made.replaces = True
    # The old files are deleted: the new block must have every live message of all of them.
    assert made.live == sum([(<MessageBlock>log.blocks[k]).live for k in range(low, high)])
    gone = [(<MessageBlock>log.blocks[k]).number for k in range(low, high)]
    for source in log.blocks[low:high]:
        log._detach(source)
    log.blocks[low:high] = [made] if made.count else []
    if log._next_live(log.first_seq) != log.first_seq:
        log._advance_first()  # the first message was damaged on disk
    if made.count == 0:
        return None, gone
    gone.remove(made.number)
    return made, gone


cdef bint joins(StreamLog log, MessageBlock neighbour, MessageBlock block, uint64_t size) noexcept:
    """May a neighbour join the block? It must contain only live messages."""
    cdef uint64_t first = min(neighbour.first_seq, block.first_seq)
    cdef uint64_t last = max(neighbour.last_seq, block.last_seq)
    return (
        neighbour.closed and neighbour is not log.tail and neighbour.clean()
        and size + neighbour.size <= log.block_size // 2 and last - first <= <uint64_t>SPAN_MAX
    )


cdef int carry_tombstones(StreamLog log, MessageBlock block) except -1:
    cdef RemovedRange* needed
    cdef size_t i, count = 0
    if not log.durable:
        return 0
    needed = needed_tombstones(log, block, &count)
    try:
        if (count or block.floor >= log.recorded_floor) and log.tail is None:
            log._roll()
        for i in range(count):
            log.tail.append_tombstone(KIND_REMOVED, needed[i].first, needed[i].last, 0)
    finally:
        free(needed)
    if block.floor and block.floor >= log.recorded_floor:
        log.tail.append_tombstone(KIND_FLOOR, log.first_seq, log.last_seq, log.last_ts)
        log.recorded_floor = log.first_seq
    return 0


cdef int relink(StreamLog log, MessageBlock block) except -1:
    """Redirects every link to a dead entry of the block to the next entry of its chain."""
    cdef size_t i, k
    cdef Py_ssize_t at
    cdef MessageBlock other
    cdef uint64_t target
    cdef uint64_t* behind      # for each dead entry: the sequence to which its links are redirected, 0 = none
    if block.count == 0:
        return 0
    behind = <uint64_t*>array_new(block.count, sizeof(uint64_t), b"entries of a block to rewrite")
    try:
        i = block.count
        while i > 0:
            i -= 1
            behind[i] = 0
            if block.entries[i].next_delta == 0:
                continue
            if block.entries[i].next_delta == <uint32_t>NEXT_FAR:
                behind[i] = <uint64_t>-1
                continue
            target = block.seq_at(i) + block.entries[i].next_delta
            at = block.find(target)
            if at >= 0 and block.entries[at].offset & <uint32_t>ENTRY_DEAD:
                target = behind[at]
            behind[i] = target
            if not block.entries[i].offset & <uint32_t>ENTRY_DEAD:
                set_link(block, i, target)
        for k in range(log.blocks.index(block)):
            other = <MessageBlock>log.blocks[k]
            if other.reach < block.first_seq:
                continue
            for i in range(other.count):
                if other.entries[i].next_delta == 0 or other.entries[i].next_delta == <uint32_t>NEXT_FAR:
                    continue
                target = other.seq_at(i) + other.entries[i].next_delta
                if target < block.first_seq or target > block.last_seq:
                    continue
                at = block.find(target)
                if at >= 0 and block.entries[at].offset & <uint32_t>ENTRY_DEAD:
                    set_link(other, i, behind[at])
    finally:
        free(behind)
    return 0


cdef int set_link(MessageBlock block, size_t i, uint64_t target) except -1:
    """Links an entry to a sequence; 0 = none, the highest = far away."""
    cdef uint64_t delta
    if target == 0:
        block.entries[i].next_delta = 0
        return 0
    delta = target - block.seq_at(i)
    if target == <uint64_t>-1 or delta >= <uint64_t>NEXT_FAR:
        block.entries[i].next_delta = <uint32_t>NEXT_FAR
        return 0
    block.entries[i].next_delta = <uint32_t>delta
    if block.reach < target:
        block.reach = target
    return 0


cdef int copy_live(StreamLog log, MessageBlock source, MessageBlock made) except -1:
    cdef size_t i
    cdef Record r
    cdef int status
    cdef char* d
    for i in range(source.count):
        if source.entries[i].offset & <uint32_t>ENTRY_DEAD:
            continue
        status = log._decode(source, i, &r)
        if status != RECORD_OK:
            log._count_lost(source, i, status)
            continue
        d = made.reserve(r.size)
        memcpy(d, source.data + source.entries[i].offset, r.size)
        made.push(r.seq, <uint32_t>made.size, r.ts, r.size)
        made.entries[made.count - 1].next_delta = source.entries[i].next_delta
        made.size += r.size
    if made.reach < source.reach:
        made.reach = source.reach
    return 0

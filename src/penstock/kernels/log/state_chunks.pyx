"""Chunks of a replicated stream's state: the live messages of a range of sequences as bytes.

    message = sequence u64 | time i64 | subject length u16 | header length u32 | payload length u32
              | subject | header block | payload        (little-endian, without gaps)

A StateReader reads them while the log goes on changing: it follows the log, and keeps what is removed in front of
its position until it gets there. So what it returns is the log as it was when the reader was made.

Invariant: a message of that time is live, was passed by, or is in `kept`, unless `is_lost`.
Rejected: a copy of the index (8 bytes a message at once), as the bytes of removed messages go all the same;
blocks that stay until a reader is done (a purge would need twice the space on the disk).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from penstock.kernels.log.message_block cimport ENTRY_DEAD, MessageBlock
from penstock.kernels.log.records cimport RECORD_OK, SEQ_BITS, Record, record_size
from penstock.kernels.log.stream_log cimport StreamLog
from penstock.kernels.log.subject_state cimport Follower
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.wire.sinks cimport Message

cdef packed struct ChunkHead:
    uint64_t seq
    int64_t ts
    uint16_t subject_len
    uint32_t header_len
    uint32_t payload_len


cdef inline void write_message(char* d, const Record* r) noexcept nogil:
    cdef ChunkHead head
    head.seq = r.seq
    head.ts = r.ts
    head.subject_len = <uint16_t>r.subject_len
    head.header_len = <uint32_t>r.header_len
    head.payload_len = <uint32_t>(r.body_len - r.header_len)
    memcpy(d, &head, sizeof(ChunkHead))
    memcpy(d + sizeof(ChunkHead), r.subject, r.subject_len)
    memcpy(d + sizeof(ChunkHead) + r.subject_len, r.body, r.body_len)


cdef inline size_t message_size(const Record* r) noexcept nogil:
    return sizeof(ChunkHead) + r.subject_len + r.body_len


def count_live(StreamLog log not None, uint64_t first, uint64_t last):
    """Live messages first..last; see the .pyi."""
    cdef uint64_t count = 0
    cdef size_t i = log._block_from(first), at
    cdef MessageBlock block
    while i < <size_t>len(log.blocks):
        block = <MessageBlock>log.blocks[i]
        for at in range(block.find_from(first), block.count):
            if block.seq_at(at) > last:
                return count
            count += not block.entries[at].offset & <uint32_t>ENTRY_DEAD
        i += 1
    return count


cdef class StateReader(Follower):
    cdef StreamLog log
    cdef uint64_t chunk_seqs
    cdef readonly uint64_t seq              # the position: what precedes it was passed by
    cdef readonly uint64_t last_seq         # of the log when the reader was made
    cdef dict kept                          # chunk -> {sequence: bytes} of messages that were removed since
    cdef readonly size_t kept_bytes
    cdef readonly bint is_lost              # all messages were removed at once, and not kept

    def __cinit__(self, StreamLog log not None, uint64_t chunk_seqs):
        if chunk_seqs == 0:
            raise ValueError("a chunk of no sequences")
        self.log = log
        self.chunk_seqs = chunk_seqs
        self.last_seq = log.last_seq
        self.seq = (log.first_seq - 1 if log.first_seq else 0) // chunk_seqs * chunk_seqs + 1
        self.kept = {}
        log.follow(self, [b">"])

    def close(self):
        """Stops following the log."""
        self.log.unfollow(self)
        self.kept = {}
        self.kept_bytes = 0

    cdef int on_append(self, uint64_t seq) except -1:
        return 0

    cdef int on_remove(self, uint64_t seq) except -1:
        """Keeps a message whose entry is dead already, while its bytes are there."""
        cdef MessageBlock block
        cdef Py_ssize_t at
        cdef Record r
        cdef bytes one
        cdef dict part
        if seq < self.seq or seq > self.last_seq:
            return 0
        block = self.log._seek(seq)
        at = block.find(seq) if block is not None else -1
        if at < 0 or self.log._decode(block, at, &r) != RECORD_OK:
            return 0                        # damaged: there is nothing to keep
        one = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>message_size(&r))
        write_message(PyBytes_AS_STRING(one), &r)
        part = self.kept.setdefault((seq - 1) // self.chunk_seqs, {})
        part[seq] = one
        self.kept_bytes += <size_t>PyBytes_GET_SIZE(one)
        return 0

    cdef int on_loss(self) except -1:
        if self.log.messages == 0:          # else one record is damaged
            self.is_lost = True
        return 0

    @property
    def chunk_end(self):
        """The last sequence of the chunk at the position."""
        return ((self.seq - 1) // self.chunk_seqs + 1) * self.chunk_seqs

    def count(self):
        """Messages from the position to the end of its chunk."""
        cdef dict part = self.kept.get((self.seq - 1) // self.chunk_seqs)
        cdef uint64_t end = min(<uint64_t>self.chunk_end, self.last_seq), seq
        cdef uint64_t count = count_live(self.log, self.seq, end)
        if part is not None:
            for seq in part:
                count += seq >= self.seq
        return count

    def skip(self):
        """Passes by the rest of the chunk at the position."""
        self._pass_by((self.seq - 1) // self.chunk_seqs)

    cdef int _pass_by(self, uint64_t chunk) except -1:
        cdef dict part = self.kept.pop(chunk, None)
        if part is not None:
            for one in part.values():
                self.kept_bytes -= <size_t>PyBytes_GET_SIZE(<bytes>one)
        self.seq = (chunk + 1) * self.chunk_seqs + 1
        return 0

    def read(self, size_t enough):
        """Reads on in the chunk at the position; see the .pyi."""
        cdef OutBuffer out = OutBuffer()
        cdef uint64_t chunk = (self.seq - 1) // self.chunk_seqs
        cdef dict part = self.kept.get(chunk)
        cdef list removed = sorted(part) if part is not None else []
        cdef Py_ssize_t at = 0
        cdef uint64_t end = min(<uint64_t>self.chunk_end, self.last_seq), live, gone
        cdef Record r
        while True:
            live = self.log._next_live(self.seq) if self.seq <= end else 0
            if live > end:
                live = 0
            while at < len(removed) and <uint64_t>removed[at] < self.seq:
                at += 1
            gone = <uint64_t>removed[at] if at < len(removed) else 0
            if live == 0 and gone == 0:
                self._pass_by(chunk)
                return out.take(), True
            if out.size >= enough:
                return out.take(), False
            if gone and (live == 0 or gone < live):
                out.write(part[gone])
                self.seq = gone + 1
            else:
                if self.log.read(live, &r):
                    write_message(out.reserve(message_size(&r)), &r)
                    out.size += message_size(&r)
                self.seq = live + 1
            if self.seq > end:              # the last sequence of the chunk was read
                self._pass_by(chunk)
                return out.take(), True


def unpack_chunk(StreamLog log not None, bytes chunk not None, size_t at, size_t enough):
    """Appends messages of a chunk; see the .pyi."""
    cdef const char* p = PyBytes_AS_STRING(chunk)
    cdef size_t size = <size_t>PyBytes_GET_SIZE(chunk), start = at
    cdef ChunkHead head
    cdef Message m
    m.reply = NULL
    m.reply_len = 0
    while at < size and at - start < enough:
        if size - at < sizeof(ChunkHead):
            raise ValueError(f"the head of a message at {at} ends at {size}")
        memcpy(&head, p + at, sizeof(ChunkHead))
        at += sizeof(ChunkHead)
        m.subject = p + at
        m.subject_len = head.subject_len
        m.body = m.subject + m.subject_len
        m.header_len = head.header_len
        m.body_len = <size_t>head.header_len + head.payload_len
        if m.subject_len + m.body_len > size - at:
            raise ValueError(f"message {head.seq} ends behind the {size} bytes of its chunk")
        if head.seq <= log.last_seq or head.seq >= (<uint64_t>1 << SEQ_BITS) - 1 or head.ts < 0:
            raise ValueError(f"message {head.seq} at {head.ts} cannot follow message {log.last_seq}")
        if m.subject_len == 0 or not record_size(m.subject_len, m.header_len, m.body_len):
            raise ValueError(f"message {head.seq}: no record holds its subject, header and payload")
        if head.seq > log.last_seq + 1:
            log.skip_to(head.seq - 1, head.ts)
        log.append_message(&m, head.ts)
        at += m.subject_len + m.body_len
    return at

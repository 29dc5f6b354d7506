# cython: auto_pickle=False
"""Single records of closed blocks, without their blocks: for whoever takes few of a block's messages.

To bring a block back costs some 300 us (its pages are mapped and populated), and a filter that takes one message in
a thousand has about a hundred in each: 3 us a message, several times of what the rest of its delivery costs. A
pread costs 0.4 us. So the next messages of a run that lie in one block are read at once, each by itself, when
they lie so far apart that this is cheaper; else the block is loaded.

Invariants: a record counts only when its hash and its sequence are right. In every other case (the disk refuses,
the file is encrypted or compressed, too short, a record is damaged) the block is loaded as ever, and LogCore says
what is lost. What was read stays right whatever happens to the block, since a sequence is never used twice; whether
its message is still there, the block's entry tells.

Rejected: keeping more blocks mapped (a stream has any number of them, and the resident memory of the process grows
by what is read); mapping without populating (a bad sector would end the process by a signal; a page fault costs
more than a pread); descriptors that stay open (they go stale when a block is rewritten, and opening the file costs
little beside a hundred reads).
"""
import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EINTR, errno
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from posix.types cimport off_t

from penstock.kernels.msgblock cimport ENTRY_DEAD, ENTRY_NONE, ENTRY_OFFSET
from penstock.kernels.records cimport KIND_MESSAGE, RECORD_OK, decode_record

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void* buffer, size_t count, off_t offset)

cdef enum:
    PIECES_MAX = 256                # read at once
    BYTES_MAX = 65536               # of them, unless there is one alone
    FEW = 16                        # so many cost less than any block
    WORTH = 16384                   # bytes of a block to load that cost as much as one pread
    ALONE = 8                       # a single record of up to an eighth of its block is worth it


cdef inline size_t room_of(MessageBlock block, size_t at) noexcept:
    """Bytes from an entry's record to the next one: the record, and perhaps notes behind it. 0: there is no telling."""
    cdef size_t offset = block.entries[at].offset & <uint32_t>ENTRY_OFFSET, end
    at += 1
    while at < block.count and block.entries[at].offset == <uint32_t>ENTRY_NONE:
        at += 1
    end = block.entries[at].offset & <uint32_t>ENTRY_OFFSET if at < block.count else block.size
    return end - offset if end > offset else 0


cdef class Pieces:
    def __dealloc__(self):
        free(self.seqs)
        free(self.pieces)

    cdef void drop(self) noexcept:
        free(self.seqs)
        free(self.pieces)
        self.seqs = NULL
        self.pieces = NULL
        self.data = None
        self.count = self.at = self.data_at = 0

    cdef int _reserve(self) except -1:
        if self.seqs != NULL:
            return 0
        self.seqs = <uint64_t*>malloc(PIECES_MAX * sizeof(uint64_t))
        self.pieces = <Piece*>malloc(PIECES_MAX * sizeof(Piece))
        if self.seqs == NULL or self.pieces == NULL:
            self.drop()
            raise MemoryError("no memory to read ahead")
        return 0

    cdef int read(self, LogCore log, const uint64_t* upcoming, size_t n, Record* r) except -1:
        cdef uint64_t seq = upcoming[0]
        cdef MessageBlock block
        cdef Py_ssize_t at
        cdef int kind = 0
        if log.read_pieces is None:
            return log.read(seq, r)
        block = log._seek(seq)
        if block is None or block.data != NULL:
            return log.read(seq, r)
        at = block.find(seq)
        if at < 0 or block.entries[at].offset & <uint32_t>ENTRY_DEAD:
            return 0
        while self.at < self.count and self.seqs[self.at] < seq:
            self.data_at += self.pieces[self.at].size
            self.at += 1
        if (self.at == self.count or self.seqs[self.at] != seq) and not self._fetch(log, block, at, upcoming, n):
            return log.read(seq, r)
        if decode_record(PyBytes_AS_STRING(self.data) + self.data_at, self.pieces[self.at].size, r, &kind,
                         True) == RECORD_OK and kind == KIND_MESSAGE and r.seq == seq:
            return 1
        self.drop()
        return log.read(seq, r)

    cdef bint _fetch(self, LogCore log, MessageBlock block, size_t at, const uint64_t* upcoming, size_t n) except -1:
        """Reads the record of an entry, the one of upcoming[0], and those of the next sequences in the same block.
        False: the block is to be loaded."""
        cdef size_t room = room_of(block, at), most = <size_t>BYTES_MAX, total = 0, taken = 0, i
        cdef size_t offset = block.entries[at].offset & <uint32_t>ENTRY_OFFSET, span
        cdef Py_ssize_t found
        cdef object read
        if n > PIECES_MAX:
            n = PIECES_MAX
        while upcoming[n - 1] > block.last_seq:
            n -= 1
        if room > most:
            if room > block.size // ALONE:
                return False
            most = room
        if n > FEW:
            i = block.find_from(upcoming[n - 1])
            span = (block.entries[i].offset & <uint32_t>ENTRY_OFFSET) - offset
            if block.entries[i].offset != <uint32_t>ENTRY_NONE and span < n * room + (n - 1) * WORTH:
                return False
        self._reserve()
        self.count = self.at = self.data_at = 0
        for i in range(n):
            found = block.find(upcoming[i])
            if found < 0 or block.entries[found].offset & <uint32_t>ENTRY_DEAD:
                continue
            room = room_of(block, found)
            if room == 0 or total + room > most:
                break
            self.seqs[taken] = upcoming[i]
            self.pieces[taken].offset = block.entries[found].offset & <uint32_t>ENTRY_OFFSET
            self.pieces[taken].size = <uint32_t>room
            total += room
            taken += 1
        if taken == 0:
            return False
        read = log.read_pieces(
            block.number, PyBytes_FromStringAndSize(<const char*>self.pieces, taken * sizeof(Piece))
        )
        if read is None or PyBytes_GET_SIZE(<bytes?>read) != <Py_ssize_t>total:
            return False
        self.data = <bytes>read
        self.count = taken
        self.fetched += taken
        return True

    def memory(self):
        return 0 if self.seqs == NULL else PIECES_MAX * (sizeof(uint64_t) + sizeof(Piece)) + len(self.data or b"")


def read_pieces(int fd, bytes pieces not None):
    """Pieces of a file; see the .pyi."""
    cdef const Piece* p = <const Piece*>PyBytes_AS_STRING(pieces)
    cdef size_t n = <size_t>PyBytes_GET_SIZE(pieces) // sizeof(Piece), i, total = 0, done
    cdef ssize_t got
    cdef int failed = 0
    cdef bytes out
    cdef char* d
    for i in range(n):
        total += p[i].size
    out = PyBytes_FromStringAndSize(NULL, total)
    d = PyBytes_AS_STRING(out)
    with nogil:
        for i in range(n):
            done = 0
            while done < p[i].size:
                got = pread(fd, d + done, p[i].size - done, <off_t>p[i].offset + <off_t>done)
                if got > 0:
                    done += <size_t>got
                elif got == 0:
                    memset(d + done, 0, p[i].size - done)
                    break
                elif errno != EINTR:
                    failed = errno
                    break
            if failed:
                break
            d += p[i].size
    if failed:
        raise OSError(failed, os.strerror(failed))
    return out

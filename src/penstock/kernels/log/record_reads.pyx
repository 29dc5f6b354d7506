# cython: auto_pickle=False
"""Single records of closed blocks, without their blocks: for whoever takes few of a block's messages.

To bring a block back costs some 300 us (its pages are mapped and populated), and a filter that takes one message in
a thousand has about a hundred in each: 3 us a message, several times of what the rest of its delivery costs. A
pread costs 0.5 us. So the next messages of a run that lie in one block are read at once, each by itself, when
they lie so far apart that this is cheaper; else the block is loaded. While one group of them is delivered, the next
one is on its way (read_ahead.pyx).

Invariants: a record counts only when its hash and its sequence are right. In every other case (the disk refuses,
the file is encrypted or compressed, too short, a record is damaged) the block is loaded as ever, and LogCore says
what is lost. What was read stays right whatever happens to the block, since a sequence is never used twice; whether
its message is still there, the block's entry tells.

Rejected: keeping more blocks mapped (a stream has any number of them, and the resident memory of the process grows
by what is read); mapping without populating (a bad sector would end the process by a signal; a page fault costs
more than a pread); descriptors that stay open (they go stale when a block is rewritten, and opening the file costs
little beside a hundred reads); a group a block (what it costs to ask for one is as much as twenty reads).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc

from penstock.kernels.log.message_block cimport ENTRY_DEAD, ENTRY_NONE, ENTRY_OFFSET
from penstock.kernels.log.records cimport KIND_MESSAGE, RECORD_OK, decode_record

cdef enum:
    GROUP_MAX = 256                 # pieces read at once
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


cdef bint is_worth_loading(MessageBlock block, size_t at, const uint64_t* upcoming, size_t n) noexcept:
    """Is the whole block cheaper than the records of so many sequences, all of this block? `at`: the first one's."""
    cdef size_t room = room_of(block, at), last
    cdef size_t offset = block.entries[at].offset & <uint32_t>ENTRY_OFFSET, span
    if room > BYTES_MAX and room > block.size // ALONE:
        return True
    if n <= FEW:
        return False
    last = block.find_from(upcoming[n - 1])
    span = (block.entries[last].offset & <uint32_t>ENTRY_OFFSET) - offset
    return block.entries[last].offset != <uint32_t>ENTRY_NONE and span < n * room + (n - 1) * WORTH


cdef inline size_t up_to(const uint64_t* upcoming, size_t n, uint64_t last) noexcept:
    """How many of the sequences, which ascend, are <= last."""
    cdef size_t low = 0, middle
    while low < n:
        middle = (low + n) // 2
        if upcoming[middle] <= last:
            low = middle + 1
        else:
            n = middle
    return low


cdef class Group:
    """Records that are read together."""

    def __dealloc__(self):
        self.drop()

    cdef void drop(self) noexcept:
        free(self.seqs)
        free(self.pieces)
        self.seqs = NULL
        self.pieces = NULL
        self.data = self.reading = None
        self.count = self.at = self.data_at = 0

    cdef bint turn_to(self, uint64_t seq) noexcept:
        """Is the record of a sequence, which never goes back, the next one?"""
        while self.at < self.count and self.seqs[self.at] < seq:
            self.data_at += self.pieces[self.at].size
            self.at += 1
        return self.at < self.count and self.seqs[self.at] == seq

    cdef int ask(self, LogCore log, const uint64_t* upcoming, size_t n) except -1:
        """Asks for the records of the next sequences, up to the first one whose block is there or is to be loaded.
        With a count of 0 afterwards: for none."""
        cdef size_t i = 0, here, taken
        cdef size_t total = 0, block_at
        cdef MessageBlock block
        cdef list files = []
        self.drop()
        self.seqs = <uint64_t*>malloc(GROUP_MAX * sizeof(uint64_t))
        self.pieces = <Piece*>malloc(GROUP_MAX * sizeof(Piece))
        if self.seqs == NULL or self.pieces == NULL:
            self.drop()
            raise MemoryError("no memory to read ahead")
        while i < n and self.count < GROUP_MAX:
            block_at = log._block_from(upcoming[i])
            if block_at == <size_t>len(log.blocks):
                break
            block = <MessageBlock>log.blocks[block_at]
            here = up_to(upcoming + i, n - i, block.last_seq)
            if block.data != NULL:
                break
            taken = self.count
            if not self._add(block, upcoming + i, here, &total):
                here = 0
            if self.count > taken:
                files.append((block.number, PyBytes_FromStringAndSize(
                    <const char*>(self.pieces + taken), <Py_ssize_t>((self.count - taken) * sizeof(Piece)))))
            if here == 0:
                break
            i += here
        if self.count:
            self.size = total
            self.reading = log.read_pieces(files)
        if self.reading is None:
            self.drop()
        return 0

    cdef bint _add(self, MessageBlock block, const uint64_t* upcoming, size_t n, size_t* total) noexcept:
        """Adds the records of sequences up to the block's end. False: it is full, or the block is to be loaded."""
        cdef size_t i, room
        cdef Py_ssize_t found
        cdef bint began = False
        for i in range(n):
            found = block.find(upcoming[i])
            if found < 0 or block.entries[found].offset & <uint32_t>ENTRY_DEAD:
                continue
            if not began and is_worth_loading(block, found, upcoming + i, n - i):
                return False
            began = True
            room = room_of(block, found)
            if room == 0 or self.count == GROUP_MAX or (self.count and total[0] + room > BYTES_MAX):
                return False
            self.seqs[self.count] = upcoming[i]
            self.pieces[self.count].offset = block.entries[found].offset & <uint32_t>ENTRY_OFFSET
            self.pieces[self.count].size = <uint32_t>room
            self.count += 1
            total[0] += room
        return True

    cdef bint take(self) except -1:
        """Waits for the bytes. False: they can't be read."""
        try:
            self.data = self.reading.take()
        except OSError:
            self.data = None
        self.reading = None
        return self.data is not None and <size_t>PyBytes_GET_SIZE(self.data) == self.size


cdef class BlockReads:
    def __cinit__(self):
        self.now, self.ahead = Group(), Group()

    cdef void drop(self) noexcept:
        self.now.drop()
        self.ahead.drop()

    cdef int read(self, LogCore log, const uint64_t* upcoming, size_t n, Record* r) except -1:
        cdef uint64_t seq = upcoming[0]
        cdef MessageBlock block
        cdef Group group
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
        group = self.now
        if (group.data is None or not group.turn_to(seq)) and not self._turn_to(log, upcoming, n):
            return log.read(seq, r)
        group = self.now
        if decode_record(PyBytes_AS_STRING(group.data) + group.data_at, group.pieces[group.at].size, r, &kind,
                         True) == RECORD_OK and kind == KIND_MESSAGE and r.seq == seq:
            return 1
        self.drop()
        return log.read(seq, r)

    cdef bint _turn_to(self, LogCore log, const uint64_t* upcoming, size_t n) except -1:
        """Goes on to the group that begins with the next sequence, and asks for the one behind it. False: the block
        is to be loaded."""
        cdef size_t passed
        if self.ahead.turn_to(upcoming[0]):
            self.now, self.ahead = self.ahead, self.now
        else:
            self.now.ask(log, upcoming, n)
        self.ahead.drop()
        if self.now.count == 0:
            return False
        passed = up_to(upcoming, n, self.now.seqs[self.now.count - 1])
        if n - passed >= FEW:
            self.ahead.ask(log, upcoming + passed, n - passed)
        if not self.now.take():
            self.drop()
            return False
        self.fetched += self.now.count
        return True

    def memory(self):
        cdef Group group
        cdef size_t total = 0
        for group in (self.now, self.ahead):
            if group.seqs != NULL:
                total += GROUP_MAX * (sizeof(uint64_t) + sizeof(Piece)) + group.size
        return total

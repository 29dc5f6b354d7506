# cython: auto_pickle=False
"""Prefetches single records of closed blocks with a thread. This is the kernels' file IO.

Reading reads ranges of files with two threads at once: a dedicated one, and the one that waits for the result.

Theory of operation. A pread of a small record from the page cache costs 0.5 us, which is more than the rest of
its delivery. So a caller that knows its next records starts a Reading and continues; when it needs the bytes, it
helps to read the remaining ranges. Both threads claim STEP ranges at a time from an atomic counter. The caller
waits only for a step that the dedicated thread has already claimed, never for an idle thread to be scheduled.

Invariants: the thread touches no Python object, and starts when it is first needed. A job that it works on (`in_use`)
isn't freed. The thread that finishes the last range closes the descriptors, so that a Reading that is never taken
has none open. After a fork the child has no thread, and starts one when needed; the parent's job in progress fails.

Rejected: a Python thread (it waits for the interpreter's lock until the end of the tick, which is too late); one
thread per reader (they would compete for the same two or four cores); io_uring (containers often forbid it, and it
saves little when pages are cached); mapping (a page fault costs more than a pread).

BlockReads reads single records of closed blocks without loading the blocks, for consumers of few of their messages
and for gets of one.

Loading a block costs some 300 us (its pages are mapped and populated), and a filter that matches one message in
a thousand has about a hundred in each: 3 us per message, several times the cost of the rest of its delivery. A
pread costs 0.5 us. So the next messages of a run that are in one block are read together, each by its own range, when
they are far enough apart that this is cheaper; otherwise the block is loaded. While one group is delivered, the next
one is being read.

Invariants: a record counts only when its hash and its sequence are right. In every other case (an IO error,
an encrypted, compressed or short file, a damaged record) the block is loaded as usual, and LogCore reports
losses. A record that was read stays valid after changes to the block, since sequences are never reused; whether
its message is still there, the block's entry tells.

Rejected: keeping more blocks mapped (a stream has any number of them, and the resident memory of the process grows
by what is read); mapping without populating (a bad sector would end the process by a signal; a page fault costs
more than a pread); descriptors that stay open (they go stale when a block is rewritten, and opening the file costs
little beside a hundred reads); a group a block (what it costs to ask for one is as much as twenty reads).
"""
import os
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint32_t
from libc.stdlib cimport free
from libc.string cimport memset
from posix.types cimport off_t

from penstock.kernels.base.memory cimport array_new, array_zeroed
from penstock.kernels.log.message_block cimport ENTRY_DEAD, ENTRY_NONE, ENTRY_OFFSET
from penstock.kernels.log.records cimport KIND_MESSAGE, RECORD_OK, decode_record


# --- read ahead

cdef extern from "<unistd.h>" nogil:
    int close(int fd)

cdef extern from "<fcntl.h>" nogil:
    int open(const char* path, int flags)
    int O_RDONLY, O_CLOEXEC

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int SIG_SETMASK
    int sigfillset(sigset_t* signals)

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, void* attributes)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)
    int pthread_cond_init(pthread_cond_t* condition, void* attributes)
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex)
    int pthread_cond_signal(pthread_cond_t* condition)
    int pthread_cond_broadcast(pthread_cond_t* condition)
    int pthread_create(pthread_t* thread, void* attributes, void* (*start)(void*) noexcept nogil, void* given)
    int pthread_detach(pthread_t thread)
    int pthread_sigmask(int how, const sigset_t* signals, sigset_t* before)
    int pthread_atfork(void (*prepare)() noexcept nogil, void (*parent)() noexcept nogil,
                       void (*child)() noexcept nogil)

cdef extern from *:
    """
    #include <unistd.h>
    #if defined(__linux__) && defined(__LP64__)
    #include <sys/syscall.h>
    /* pread() without being a point of cancellation, which costs a tenth of it. */
    static inline ssize_t read_at(int fd, void* d, size_t n, off_t at) { return syscall(SYS_pread64, fd, d, n, at); }
    #else
    #define read_at pread
    #endif
    """
    ssize_t read_at(int fd, void* d, size_t n, off_t at) nogil
    int RELAXED "__ATOMIC_RELAXED"
    int BOTH "__ATOMIC_ACQ_REL"
    size_t fetch_add "__atomic_fetch_add"(size_t* number, size_t more, int order) nogil
    void store "__atomic_store_n"(int* number, int value, int order) nogil

cdef enum:
    STEP = 16                       # ranges claimed at a time
    SHARED = 32                     # fewer are read faster than the thread wakes up

cdef struct RangeRead:
    int fd
    FileRange source
    size_t at                       # offset in the job's bytes

cdef struct Job:
    RangeRead* reads
    size_t count
    int* fds
    size_t fd_count
    char* bytes
    size_t taken                    # claimed reads; may exceed count
    size_t done
    int failed                      # errno of a range that could not be read
    bint in_use                     # the thread works on it
    Job* next                       # in the queue

cdef pthread_mutex_t lock           # of everything below, and of each job's in_use and next
cdef pthread_cond_t queued
cdef pthread_cond_t released
cdef Job* first = NULL
cdef Job* last = NULL
cdef Job* current = NULL            # of the thread
cdef bint running = False


cdef int read_range(const RangeRead* read, char* d) noexcept nogil:
    """Reads the whole range, with zeros after the file's end: 0, or errno."""
    cdef size_t done = 0
    cdef ssize_t got
    while done < read.source.size:
        got = read_at(read.fd, d + done, read.source.size - done, <off_t>read.source.offset + <off_t>done)
        if got > 0:
            done += <size_t>got
        elif got == 0:
            memset(d + done, 0, read.source.size - done)
            break
        elif errno != EINTR:
            return errno
    return 0


cdef void close_all(Job* job) noexcept nogil:
    cdef size_t i
    for i in range(job.fd_count):
        close(job.fds[i])
    job.fd_count = 0


cdef void work(Job* job) noexcept nogil:
    """Reads the ranges that neither thread has claimed."""
    cdef size_t start, end, i
    cdef int failed
    while True:
        start = fetch_add(&job.taken, STEP, RELAXED)
        if start >= job.count:
            return
        end = start + STEP if start + STEP < job.count else job.count
        for i in range(start, end):
            failed = read_range(&job.reads[i], job.bytes + job.reads[i].at)
            if failed:
                store(&job.failed, failed, RELAXED)
        if fetch_add(&job.done, end - start, BOTH) + end - start == job.count:
            close_all(job)


cdef void* serve(void* nothing) noexcept nogil:
    global first, last, current
    cdef Job* job
    pthread_mutex_lock(&lock)
    while True:
        while first == NULL:
            pthread_cond_wait(&queued, &lock)
        job = current = first
        first = job.next
        if first == NULL:
            last = NULL
        job.in_use = True
        pthread_mutex_unlock(&lock)
        work(job)
        pthread_mutex_lock(&lock)
        job.in_use = False
        current = NULL
        pthread_cond_broadcast(&released)


cdef void reset_after_fork() noexcept nogil:
    """Runs in a forked child."""
    global first, last, current, running
    pthread_mutex_init(&lock, NULL)
    pthread_cond_init(&queued, NULL)
    pthread_cond_init(&released, NULL)
    if current != NULL:
        current.in_use = False
        current.failed = EINTR
    first = last = current = NULL
    running = False


cdef void start_thread() noexcept nogil:
    """The caller holds the lock. If no thread can be created, the waiting caller reads everything."""
    global running
    cdef pthread_t thread
    cdef sigset_t all_signals, before
    sigfillset(&all_signals)
    pthread_sigmask(SIG_SETMASK, &all_signals, &before)     # signals are for Python's threads
    if pthread_create(&thread, NULL, serve, NULL) == 0:
        pthread_detach(thread)
        running = True
    pthread_sigmask(SIG_SETMASK, &before, NULL)


cdef void put(Job* job) noexcept nogil:
    global first, last
    pthread_mutex_lock(&lock)
    if not running:
        start_thread()
    if running:
        if last == NULL:
            first = job
        else:
            last.next = job
        last = job
        pthread_cond_signal(&queued)
    pthread_mutex_unlock(&lock)


cdef void withdraw(Job* job) noexcept nogil:
    """Removes a job from the queue and waits until the thread doesn't use it: the caller may then free it."""
    global first, last
    cdef Job* before = NULL
    cdef Job* one
    pthread_mutex_lock(&lock)
    one = first
    while one != NULL and one != job:
        before = one
        one = one.next
    if one == job:
        if before == NULL:
            first = job.next
        else:
            before.next = job.next
        if last == job:
            last = before
    while job.in_use:
        pthread_cond_wait(&released, &lock)
    pthread_mutex_unlock(&lock)


cdef class Reading:
    cdef Job job
    cdef bytes data

    def __cinit__(self, list files not None):
        cdef size_t total = 0, i = 0, n
        cdef const FileRange* wanted
        cdef bytes ranges
        cdef int fd
        for _, ranges in files:
            self.job.count += <size_t>PyBytes_GET_SIZE(ranges) // sizeof(FileRange)
        self.job.reads = <RangeRead*>array_new(self.job.count, sizeof(RangeRead), b"pieces to read")
        self.job.fds = <int*>array_zeroed(<size_t>len(files), sizeof(int), b"files to read")
        for path, ranges in files:
            fd = open(<bytes?>path, O_RDONLY | O_CLOEXEC)
            if fd < 0:
                raise OSError(errno, os.strerror(errno), os.fsdecode(path))
            self.job.fds[self.job.fd_count] = fd
            self.job.fd_count += 1
            wanted = <const FileRange*>PyBytes_AS_STRING(ranges)
            for n in range(<size_t>PyBytes_GET_SIZE(ranges) // sizeof(FileRange)):
                self.job.reads[i] = RangeRead(fd, wanted[n], total)
                total += wanted[n].size
                i += 1
        self.data = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
        self.job.bytes = PyBytes_AS_STRING(self.data)
        if self.job.count >= SHARED:
            put(&self.job)

    def __dealloc__(self):
        if self.job.count >= SHARED:
            fetch_add(&self.job.taken, self.job.count, RELAXED)     # neither thread claims another range
            with nogil:
                withdraw(&self.job)
        close_all(&self.job)
        free(self.job.reads)
        free(self.job.fds)

    def take(self):
        with nogil:
            work(&self.job)
            if self.job.count >= SHARED:
                withdraw(&self.job)
            close_all(&self.job)
        if self.job.failed:
            raise OSError(self.job.failed, os.strerror(self.job.failed))
        return self.data


pthread_mutex_init(&lock, NULL)
pthread_cond_init(&queued, NULL)
pthread_cond_init(&released, NULL)
pthread_atfork(NULL, NULL, reset_after_fork)


# --- record reads

cdef enum:
    GROUP_MAX = 256                 # records of a group
    BYTES_MAX = 65536               # their bytes, unless there is only one
    SPARSE_RECORDS_MAX = 16         # up to this many reads cost less than loading any block
    LOAD_BYTES_PER_READ = 16384     # loading this many bytes of a block costs as much as one pread
    SINGLE_RECORD_SHARE = 8         # a single record is read alone if it is at most this fraction of its block


cdef inline size_t room_of(MessageBlock block, size_t at) noexcept:
    """Bytes from an entry's record to the next one: the record, and possibly tombstones after it. 0: unknown."""
    cdef size_t offset = block.entries[at].offset & <uint32_t>ENTRY_OFFSET, end
    at += 1
    while at < block.count and block.entries[at].offset == <uint32_t>ENTRY_NONE:
        at += 1
    end = block.entries[at].offset & <uint32_t>ENTRY_OFFSET if at < block.count else block.size
    return end - offset if end > offset else 0


cdef bint should_load_block(MessageBlock block, size_t at, const uint64_t* upcoming, size_t n) noexcept:
    """Is loading the block cheaper than reading the records of n of its sequences? `at`: the first one's entry."""
    cdef size_t room = room_of(block, at), last
    cdef size_t offset = block.entries[at].offset & <uint32_t>ENTRY_OFFSET, span
    if room > BYTES_MAX and room > block.size // SINGLE_RECORD_SHARE:
        return True
    if n <= SPARSE_RECORDS_MAX:
        return False
    last = block.find_from(upcoming[n - 1])
    span = (block.entries[last].offset & <uint32_t>ENTRY_OFFSET) - offset
    return block.entries[last].offset != <uint32_t>ENTRY_NONE and span < n * room + (n - 1) * LOAD_BYTES_PER_READ


cdef inline size_t up_to(const uint64_t* upcoming, size_t n, uint64_t last) noexcept:
    """How many of the ascending sequences are <= last."""
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
        free(self.ranges)
        self.seqs = NULL
        self.ranges = NULL
        self.data = self.reading = None
        self.count = self.at = self.data_at = 0

    cdef bint advance_to(self, uint64_t seq) noexcept:
        """Advances to the record of a sequence, which never decreases; True when the group has it."""
        while self.at < self.count and self.seqs[self.at] < seq:
            self.data_at += self.ranges[self.at].size
            self.at += 1
        return self.at < self.count and self.seqs[self.at] == seq

    cdef int request(self, LogCore log, const uint64_t* upcoming, size_t n) except -1:
        """Starts reading the records of the next sequences, up to the first one whose block is resident or should be
        loaded. Leaves `count` at 0 when there are none."""
        cdef size_t i = 0, in_block, taken
        cdef size_t total = 0, block_at
        cdef MessageBlock block
        cdef list files = []
        self.drop()
        self.seqs = <uint64_t*>array_new(GROUP_MAX, sizeof(uint64_t), b"records to read ahead")
        self.ranges = <FileRange*>array_new(GROUP_MAX, sizeof(FileRange), b"records to read ahead")
        while i < n and self.count < GROUP_MAX:
            block_at = log._block_from(upcoming[i])
            if block_at == <size_t>len(log.blocks):
                break
            block = <MessageBlock>log.blocks[block_at]
            in_block = up_to(upcoming + i, n - i, block.last_seq)
            if block.data != NULL:
                break
            taken = self.count
            if not self._add(block, upcoming + i, in_block, &total):
                in_block = 0
            if self.count > taken:
                files.append((block.number, PyBytes_FromStringAndSize(
                    <const char*>(self.ranges + taken), <Py_ssize_t>((self.count - taken) * sizeof(FileRange)))))
            if in_block == 0:
                break
            i += in_block
        if self.count:
            self.size = total
            self.reading = log.read_ranges(files)
        if self.reading is None:
            self.drop()
        return 0

    cdef bint _add(self, MessageBlock block, const uint64_t* upcoming, size_t n, size_t* total) noexcept:
        """Adds the records of sequences up to the block's end. False: the group is full, or the block should be
        loaded."""
        cdef size_t i, room
        cdef Py_ssize_t found
        cdef bint began = False
        for i in range(n):
            found = block.find(upcoming[i])
            if found < 0 or block.entries[found].offset & <uint32_t>ENTRY_DEAD:
                continue
            if not began and should_load_block(block, found, upcoming + i, n - i):
                return False
            began = True
            room = room_of(block, found)
            if room == 0 or self.count == GROUP_MAX or (self.count and total[0] + room > BYTES_MAX):
                return False
            self.seqs[self.count] = upcoming[i]
            self.ranges[self.count].offset = block.entries[found].offset & <uint32_t>ENTRY_OFFSET
            self.ranges[self.count].size = <uint32_t>room
            self.count += 1
            total[0] += room
        return True

    cdef bint take(self) except -1:
        """Waits for the bytes. False: the read failed."""
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
        if log.read_ranges is None:
            return log.read(seq, r)
        block = log._seek(seq)
        if block is None or block.data != NULL:
            return log.read(seq, r)
        at = block.find(seq)
        if at < 0 or block.entries[at].offset & <uint32_t>ENTRY_DEAD:
            return 0
        group = self.now
        if (group.data is None or not group.advance_to(seq)) and not self._next_group(log, upcoming, n):
            return log.read(seq, r)
        group = self.now
        if decode_record(PyBytes_AS_STRING(group.data) + group.data_at, group.ranges[group.at].size, r, &kind,
                         True) == RECORD_OK and kind == KIND_MESSAGE and r.seq == seq:
            return 1
        self.drop()
        return log.read(seq, r)

    cdef bint _next_group(self, LogCore log, const uint64_t* upcoming, size_t n) except -1:
        """Advances to the group that begins with the next sequence, and starts reading the group after it. False: the
        block should be loaded."""
        cdef size_t passed
        if self.ahead.advance_to(upcoming[0]):
            self.now, self.ahead = self.ahead, self.now
        else:
            self.now.request(log, upcoming, n)
        self.ahead.drop()
        if self.now.count == 0:
            return False
        passed = up_to(upcoming, n, self.now.seqs[self.now.count - 1])
        if n - passed >= SPARSE_RECORDS_MAX:
            self.ahead.request(log, upcoming + passed, n - passed)
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
                total += GROUP_MAX * (sizeof(uint64_t) + sizeof(FileRange)) + group.size
        return total

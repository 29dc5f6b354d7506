# cython: auto_pickle=False
"""Pieces of files, read by two threads at once: by one that does nothing else, and by whoever waits for them.

Theory of operation. A pread of a small record from the page cache costs 0.5 us, which is more than all the rest of
its delivery. So whoever knows what it will need next asks for it here and goes on; when it needs the bytes, it
takes a share of what is not read yet. Both take STEP pieces at a time off a counter. A thread that gets no core
is never waited for; one that is in the middle of its step is.

Invariants: the thread touches no Python object, and is made when it is first needed. What it works on (`held`)
isn't freed. Descriptors are closed by whoever finishes the last piece, so that what nobody takes holds none. After
a fork the child has no thread, and makes one when it needs it; what its parent's was in the middle of has failed.

Rejected: a Python thread (it waits for the interpreter's lock until the tick is over, and then it is late); one
thread a reader (they would compete for the same two or four cores); io_uring (containers forbid it more often than
not, and a read of cached pages saves little beside the page's way into the cache of the core); mapping (a page
fault costs more than a pread).
"""
import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EINTR, errno
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset
from posix.types cimport off_t

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
    STEP = 16                       # pieces taken at a time
    SHARED = 32                     # fewer are read faster than the thread wakes up

cdef struct Want:
    int fd
    Piece piece
    size_t at                       # where in the bytes it goes

cdef struct Job:
    Want* wants
    size_t count
    int* fds
    size_t fd_count
    char* bytes
    size_t taken                    # of the wants; beyond count: all are
    size_t done
    int failed                      # errno of a piece that could not be read
    bint held                       # the thread works on it
    Job* next                       # in the queue

cdef pthread_mutex_t lock           # of everything below, and of each job's held and next
cdef pthread_cond_t queued
cdef pthread_cond_t let_go
cdef Job* first = NULL
cdef Job* last = NULL
cdef Job* current = NULL            # of the thread
cdef bint running = False


cdef int read_piece(const Want* want, char* d) noexcept nogil:
    """Reads it all, with zeros behind the file's end: 0, or errno."""
    cdef size_t done = 0
    cdef ssize_t got
    while done < want.piece.size:
        got = read_at(want.fd, d + done, want.piece.size - done, <off_t>want.piece.offset + <off_t>done)
        if got > 0:
            done += <size_t>got
        elif got == 0:
            memset(d + done, 0, want.piece.size - done)
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
    """Reads what nobody has taken yet."""
    cdef size_t start, end, i
    cdef int failed
    while True:
        start = fetch_add(&job.taken, STEP, RELAXED)
        if start >= job.count:
            return
        end = start + STEP if start + STEP < job.count else job.count
        for i in range(start, end):
            failed = read_piece(&job.wants[i], job.bytes + job.wants[i].at)
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
        job.held = True
        pthread_mutex_unlock(&lock)
        work(job)
        pthread_mutex_lock(&lock)
        job.held = False
        current = NULL
        pthread_cond_broadcast(&let_go)


cdef void begin_anew() noexcept nogil:
    """In a forked child."""
    global first, last, current, running
    pthread_mutex_init(&lock, NULL)
    pthread_cond_init(&queued, NULL)
    pthread_cond_init(&let_go, NULL)
    if current != NULL:
        current.held = False
        current.failed = EINTR
    first = last = current = NULL
    running = False


cdef void start_thread() noexcept nogil:
    """With the lock held. Without a thread, whoever waits reads everything."""
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
    """When it returns, the thread knows nothing of the job any more."""
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
    while job.held:
        pthread_cond_wait(&let_go, &lock)
    pthread_mutex_unlock(&lock)


cdef class Reading:
    cdef Job job
    cdef bytes data

    def __cinit__(self, list files not None):
        cdef size_t total = 0, i = 0, n
        cdef const Piece* wanted
        cdef bytes pieces
        cdef int fd
        for _, pieces in files:
            self.job.count += <size_t>PyBytes_GET_SIZE(pieces) // sizeof(Piece)
        self.job.wants = <Want*>malloc((self.job.count + 1) * sizeof(Want))
        self.job.fds = <int*>calloc(len(files) + 1, sizeof(int))
        if self.job.wants == NULL or self.job.fds == NULL:
            raise MemoryError(f"no memory to read {self.job.count} pieces")
        for path, pieces in files:
            fd = open(<bytes?>path, O_RDONLY | O_CLOEXEC)
            if fd < 0:
                raise OSError(errno, os.strerror(errno), os.fsdecode(path))
            self.job.fds[self.job.fd_count] = fd
            self.job.fd_count += 1
            wanted = <const Piece*>PyBytes_AS_STRING(pieces)
            for n in range(<size_t>PyBytes_GET_SIZE(pieces) // sizeof(Piece)):
                self.job.wants[i] = Want(fd, wanted[n], total)
                total += wanted[n].size
                i += 1
        self.data = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
        self.job.bytes = PyBytes_AS_STRING(self.data)
        if self.job.count >= SHARED:
            put(&self.job)

    def __dealloc__(self):
        if self.job.count >= SHARED:
            fetch_add(&self.job.taken, self.job.count, RELAXED)     # nobody begins another piece
            with nogil:
                withdraw(&self.job)
        close_all(&self.job)
        free(self.job.wants)
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
pthread_cond_init(&let_go, NULL)
pthread_atfork(NULL, NULL, begin_anew)

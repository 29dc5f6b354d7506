# cython: auto_pickle=False
"""The subjects that a filter matches in a log, with their counts, as they were at one moment.

A stream has millions of subjects, and an answer that lists some in order has to sort all that match: a tenth of
a second for 300,000. So what is listed is copied first (10 ms for as many), and sorted piece by piece in later
turns, while the log goes on.

Theory of operation. A merge sort from the bottom: runs of RUN subjects are sorted one by one, then pairs of
runs are merged into runs of twice the length, until one is left. A merge stops anywhere and goes on there.

Invariant: `order` has each place once. Runs of `width` of it are in order; from `at` on, a pair of them is being
merged into `merged`, which becomes `order` when all its pairs are done.

Rejected: qsort of everything (it can't stop); an index of subjects in order (each new subject would pay for it).
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from penstock.kernels.log.stream_log cimport StreamLog
from penstock.kernels.log.subject_state cimport Subject, SubjectState

cdef enum:
    RUN = 16                    # sorted by insertion
    RUN_WORK = 64               # comparisons that takes


cdef class SubjectCounts:
    def __cinit__(self, StreamLog log not None, bytes filter not None):
        cdef SubjectState state = log.state
        cdef size_t i, size = 0, n = state.match(<const char*>filter, len(filter))
        cdef const Subject* s
        for i in range(n):
            size += state.items[state.matched[i]].text_len
        self.items = <SubjectCount*>malloc((n + 1) * sizeof(SubjectCount))
        self.texts = <char*>malloc(size + 1)
        self.order = <uint32_t*>malloc((n + 1) * sizeof(uint32_t))
        self.merged = <uint32_t*>malloc((n + 1) * sizeof(uint32_t))
        if self.items == NULL or self.texts == NULL or self.order == NULL or self.merged == NULL:
            raise MemoryError()
        size = 0
        for i in range(n):
            s = &state.items[state.matched[i]]
            self.items[i].count = s.count
            self.items[i].text = size
            self.items[i].text_len = s.text_len
            memcpy(self.texts + size, state.arena + s.text, s.text_len)
            size += s.text_len
            self.order[i] = <uint32_t>i
        self.total = n

    def __dealloc__(self):
        free(self.items)
        free(self.texts)
        free(self.order)
        free(self.merged)

    def __len__(self):
        return self.total

    cdef bint _is_before(self, uint32_t one, uint32_t other) noexcept nogil:
        cdef const SubjectCount* a = &self.items[one]
        cdef const SubjectCount* b = &self.items[other]
        cdef uint32_t n = a.text_len if a.text_len < b.text_len else b.text_len
        cdef int found = memcmp(self.texts + a.text, self.texts + b.text, n)
        return found < 0 or (found == 0 and a.text_len < b.text_len)

    cdef size_t _sort_run(self) noexcept:
        """Sorts the next run of the first length; returns the work it took."""
        cdef size_t end = self.at + RUN if self.at + RUN < self.total else self.total
        cdef size_t i, hole
        cdef uint32_t item
        for i in range(self.at + 1, end):
            item = self.order[i]
            hole = i
            while hole > self.at and self._is_before(item, self.order[hole - 1]):
                self.order[hole] = self.order[hole - 1]
                hole -= 1
            self.order[hole] = item
        self.at = end
        return RUN_WORK

    cdef size_t _merge(self, size_t most) noexcept:
        """Goes on with a pair of runs for `most` subjects at most; returns how many it put in order."""
        cdef size_t middle = self.at + self.width, end = middle + self.width
        cdef size_t out, done = 0
        if middle > self.total:
            middle = self.total
        if end > self.total:
            end = self.total
        if not self.in_pair:
            self.left = self.at
            self.right = middle
            self.in_pair = True
        out = self.left + (self.right - middle)
        while done < most and (self.left < middle or self.right < end):
            if self.right == end or (
                self.left < middle and not self._is_before(self.order[self.right], self.order[self.left])
            ):
                self.merged[out] = self.order[self.left]
                self.left += 1
            else:
                self.merged[out] = self.order[self.right]
                self.right += 1
            out += 1
            done += 1
        if self.left == middle and self.right == end:
            self.at = end
            self.in_pair = False
        return done

    def sort(self, size_t work):
        cdef size_t done
        while work and (self.width == 0 or self.width < self.total):
            if self.at == self.total:       # all runs of a length are there
                if self.width == 0:
                    self.width = RUN
                else:
                    self.order, self.merged = self.merged, self.order
                    self.width *= 2
                self.at = 0
                continue
            done = self._sort_run() if self.width == 0 else self._merge(work)
            work -= done if done < work else work
        return work

    def rows(self, size_t start, size_t stop):
        cdef size_t i
        cdef const SubjectCount* item
        cdef list found = []
        for i in range(start, stop if stop < self.total else self.total):
            item = &self.items[self.order[i]]
            found.append((PyBytes_FromStringAndSize(self.texts + item.text, item.text_len), item.count))
        return found

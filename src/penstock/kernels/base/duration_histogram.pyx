"""Counts of durations in buckets with fixed bounds: a histogram that one call updates for many events.

The tick adds all acks of a stream with one call, and a thread that synced a file adds one sync. A call runs under
the interpreter's lock and calls no Python code, so threads need no other lock.

Invariants: bounds ascend; a duration that equals a bound is in the bucket of that bound, as in Prometheus.

Rejected: prometheus-client's Histogram (a lock and a Python call per event); quantiles computed here (those of
several servers cannot be added).
"""
from libc.stdint cimport uint64_t

# From a write to the page cache to a disk that hangs: 0.1 ms to 10 s, ns.
BOUNDS_NS = (
    100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 25_000_000, 50_000_000,
    100_000_000, 250_000_000, 500_000_000, 1_000_000_000, 2_500_000_000, 5_000_000_000, 10_000_000_000,
)

cdef class DurationHistogram:
    """A histogram of durations."""

    def __cinit__(self, bounds_ns=BOUNDS_NS):
        cdef uint64_t bound
        cdef size_t i = 0
        if not 0 < len(bounds_ns) <= BOUNDS_MAX:
            raise ValueError(f"a histogram has 1 to {BOUNDS_MAX} bounds, not {len(bounds_ns)}")
        for bound in bounds_ns:
            if i and bound <= self.bounds[i - 1]:
                raise ValueError(f"bounds ascend: {bound} follows {self.bounds[i - 1]}")
            self.bounds[i] = bound
            i += 1
        self.size = i

    cdef void add(self, uint64_t duration_ns, uint64_t n) noexcept:
        cdef size_t i = 0
        while i < self.size and duration_ns > self.bounds[i]:
            i += 1
        self.counts[i] += n
        self.sum_ns += duration_ns * n

    def observe(self, uint64_t duration_ns, uint64_t n=1):
        """Counts `n` events that each took this time."""
        self.add(duration_ns, n)

    def snapshot(self):
        """(sum of all durations in ns, [(bound in ns, events up to it)], events)."""
        cdef uint64_t total = 0
        cdef size_t i
        cdef list below = []
        for i in range(self.size):
            total += self.counts[i]
            below.append((self.bounds[i], total))
        return self.sum_ns, below, total + self.counts[self.size]

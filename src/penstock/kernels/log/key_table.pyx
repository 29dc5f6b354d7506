"""A hash table of entries found by bytes that lie somewhere in a buffer: no key object is made to look.

The base of what keeps the open batches of publishers: an entry is added under its key, and stays where it is
until it is removed. The hash is seeded per process, so that nobody can prepare keys that collide.

Invariants: an entry is in at most one table, in the bucket of its hash; no two have the same key.
Rejected: a Python dict (a key object for every look).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t
from libc.string cimport memcmp

from penstock.kernels.log.records cimport xxh64

cdef class KeyEntry:
    """What a KeyTable holds; its users derive from it."""


cdef class KeyTable:
    """Entries by their keys."""

    def __cinit__(self):
        self.seed = <uint64_t>hash(b"penstock.keytable")

    cdef KeyEntry look_up(self, const char* key, size_t n):
        """The entry of a key, or None."""
        cdef uint64_t h = xxh64(key, n, self.seed)
        cdef KeyEntry entry = <KeyEntry>self.buckets[<size_t>(h & self.mask)]
        while entry is not None:
            if (
                entry.hash == h
                and <size_t>PyBytes_GET_SIZE(entry.key) == n
                and memcmp(PyBytes_AS_STRING(entry.key), key, n) == 0
            ):
                return entry
            entry = entry.next
        return None

    cdef int add(self, KeyEntry entry, bytes key) except -1:
        """Adds an entry; there is none of this key."""
        cdef size_t bucket
        entry.key = key
        entry.hash = xxh64(PyBytes_AS_STRING(key), <size_t>PyBytes_GET_SIZE(key), self.seed)
        bucket = <size_t>(entry.hash & self.mask)
        entry.next = self.buckets[bucket]
        self.buckets[bucket] = entry
        return 0

    cdef int remove(self, KeyEntry entry) except -1:
        """Takes an entry out that is in the table."""
        cdef size_t bucket = <size_t>(entry.hash & self.mask)
        cdef KeyEntry before = <KeyEntry>self.buckets[bucket]
        if before is entry:
            self.buckets[bucket] = entry.next
        else:
            while before.next is not entry:
                before = before.next
            before.next = entry.next
        entry.next = None
        return 0

    cdef list entries(self):
        """All of them, in no order."""
        cdef list found = []
        cdef KeyEntry entry
        for entry in self.buckets:
            while entry is not None:
                found.append(entry)
                entry = entry.next
        return found

    cdef int make(self, size_t buckets) except -1:
        """An empty table of so many buckets, a power of two; who derives from it calls this first."""
        self.buckets = [None] * buckets
        self.mask = buckets - 1
        return 0

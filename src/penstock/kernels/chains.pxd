"""Walking the chain of one subject: how many messages it has from a sequence on."""
from libc.stdint cimport uint64_t
from penstock.kernels.logcore cimport LogCore
from penstock.kernels.subjectstate cimport Subject

# Live messages of a subject from a sequence on.
cdef uint64_t count_from(LogCore log, Subject* s, uint64_t seq) except? 0xFFFFFFFFFFFFFFFF

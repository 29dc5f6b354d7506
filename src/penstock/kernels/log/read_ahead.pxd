"""Pieces of files, read by two threads at once."""
from libc.stdint cimport uint32_t

# Some bytes of a file.
cdef struct Piece:
    uint32_t offset
    uint32_t size

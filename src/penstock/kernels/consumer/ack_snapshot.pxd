"""The whole of an ack state as bytes."""
from libc.stdint cimport uint64_t

from penstock.kernels.consumer.ack_window cimport Window

# Where a consumer is.
cdef struct Position:
    uint64_t delivered_consumer, delivered_stream
    uint64_t ack_floor_consumer, ack_floor_stream

# `held`: how many entries of the window are pending or parked. dead: {stream seq: deliveries}.
cdef bytes write_snapshot(int policy, const Position* position, const Window* w, size_t held, dict dead)
# Fills window and dead in place of what they hold. Raises ValueError where it is no snapshot of that policy.
cdef int read_snapshot(bytes snapshot, int policy, Position* position, Window* w, dict dead) except -1

"""Headers that ask for a message's trace."""
from penstock.kernels.wire.sinks cimport Message

# Does the header block name a destination of traces? With `parent`, a `traceparent` asks as well.
cdef bint asks_for_trace(const Message* m, bint parent) noexcept nogil

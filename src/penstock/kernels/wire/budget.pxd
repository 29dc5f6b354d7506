"""How long the loop works for connections with much to do before all others have a turn."""
from libc.stdint cimport uint64_t

# ns
cdef enum:
    SHORT = 25_000
    LONG = 2_000_000
    LIGHT = 50_000                  # the work of one read of a connection with little to do, at most
    CROWD = 50_000_000
# bytes
    READ_CROWDED = 32 << 10         # of a connection with much to do, in a crowd

cdef class LoopBudget:
    cdef object call_soon
    cdef object clock               # None = the monotonic clock
    cdef object queue               # callables: those that wait for a turn, in the order in which they came
    cdef bint scheduled             # call_soon(turn) is on its way
    cdef bint in_turn               # turn() runs
    cdef uint64_t began, until      # of the part that runs, ns
    cdef bint short                 # the budget of the part or turn that runs is SHORT
    cdef uint64_t crowded_until
    cdef unsigned int depth         # parts begun and not ended: a layer's part has those of its connection in it
    cdef uint64_t now(self) except? 0
    # Begins a part, or goes on with the one that runs. `used`: ns of its budget that are gone already.
    cdef int begin(self, uint64_t used) except -1
    # Has the part that runs, if one does, used up its budget?
    cdef bint is_spent(self) except -1
    # What the part that runs has taken so far, ns.
    cdef uint64_t taken(self) except? 0
    cdef int end(self) except -1
    # A connection does little in the part that runs: it is there, and wants answers soon.
    cdef int note_light(self) except -1
    cdef bint is_crowded(self) except -1
    # Does anybody wait for a turn?
    cdef bint has_waiting(self) except -1

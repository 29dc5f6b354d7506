"""Incremental parser of the frames that servers exchange over routes."""
from libc.stdint cimport uint32_t

from penstock.kernels.wire.frames cimport Frame, FrameParser, Span

cpdef enum RouteOp:
    ROUTE_SUB = 32      # RS+, LS+
    ROUTE_UNSUB = 33    # RS-, LS-
    ROUTE_MSG = 34      # RMSG, HMSG, LMSG
    ROUTE_ACCOUNT = 35      # A+ <account>: only gateways use these two
    ROUTE_NO_ACCOUNT = 36   # A- <account>

# A frame of a route. For control frames only `plain` is set, with an Op of frames.pxd. Pointers are valid as those of
# a Frame. An absent part has a length of 0.
cdef struct RouteFrame:
    int op              # RouteOp, or the Op of a control frame
    bint is_leaf        # LS+, LS-, LMSG
    Frame plain         # subject, reply and body of a message; subject and `reply` = queue group of an interest
    Span origin         # cluster of the leaf node that a frame with is_leaf comes from; `_` = it has no name
    Span account
    Span queues         # of a message: names of the groups that get it, with blanks between
    uint32_t weight     # of the members of a queue group, at least 1

cdef class RouteParser(FrameParser):
    cdef readonly bint is_wide      # takes messages and interest
    cdef readonly bint is_leaf      # frames of a leaf node link
    cdef readonly bytes account     # of a route dedicated to one account, whose frames omit it; b"" = none
    cdef int next_route(self, RouteFrame* f) except -1
    cdef int parse_route(self, RouteFrame* f) except -1
    cdef int parse_interest(self, RouteFrame* f, const char* p, const char* end) except -1
    cdef int parse_message(self, RouteFrame* f, const char* p, const char* end, bint has_header) except -1
    cdef int refuse(self, RouteFrame* f, int error) noexcept

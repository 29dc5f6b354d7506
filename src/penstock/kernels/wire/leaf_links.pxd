"""Messages and interest between a leaf node and its hub: the compiled half of a leaf node link."""
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex
from penstock.kernels.wire.dispatch cimport DeliveryGuard, SubjectMapper
from penstock.kernels.wire.route_frames cimport RouteFrame
from penstock.kernels.wire.route_links cimport RouteIngress, RouteSink, RouteTarget
from penstock.kernels.wire.sinks cimport Message, RemoteSubscription, Sink

# The output half.
cdef class LeafSink(RouteSink):
    pass

# The account of the link, as receiver of messages, and the other server's interest in it.
cdef class LeafTarget(RouteTarget):
    pass

# The input half.
cdef class LeafIngress(RouteIngress):
    cdef DeliveryGuard taken            # None, or the permissions of messages that come in
    cdef bytes loop_subject             # this server's own subject that detects loops; b"" = none
    cdef readonly bint is_looped        # loop_subject came back: messages from there are dropped
    cdef object may_accept              # None, or callable(subject: bytes) -> bool: interest that comes in
    cdef object on_loop                 # callable()
    cdef object on_refused              # callable(is_message: bool, subject: bytes)
    cdef int take_loop(self, const RouteFrame* f) except -1

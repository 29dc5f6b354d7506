"""Routing of one message that reports every step."""
from penstock.kernels.routing.account_imports cimport ServiceImportSink, RouteHook
from penstock.kernels.wire.sinks cimport Message, Sink, SinkSubscription
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex

cdef class TracedRoute(RouteHook):
    cdef object trace
    cdef int route(self, ServiceImportSink sink, const Message* m, Sink origin) except -1
    cdef int route_all(self, SubscriptionIndex index, const Message* m, Sink origin, bint imported) except -1
    cdef int hand_on(self, SinkSubscription sub, const Message* m, Sink origin, bint imported) except -1
    cdef int import_stream(self, SinkSubscription sub, const Message* m, Sink origin) except -1
    cdef int pass_on(self, SinkSubscription sub, const Message* m, Sink origin, bint imported) except -1
    cdef int to_client(self, SinkSubscription shown, SinkSubscription sub, const Message* m, Sink origin) except -1
    cdef int to_stream(self, SinkSubscription sub, const Message* m, Sink origin) except -1

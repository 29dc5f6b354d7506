"""Routing of one message that reports every step."""
from penstock.kernels.routing.account_imports cimport ServiceImportSink, RouteHook
from penstock.kernels.wire.sinks cimport Message, RemoteSubscription, Sink, SinkSubscription
from penstock.kernels.routing.subscription_index cimport RemoteReceivers, SharedGroup, SubscriptionIndex

cdef class TracedRoute(RouteHook):
    cdef object trace
    cdef int route(self, ServiceImportSink sink, const Message* m, Sink origin) except -1
    cdef int route_all(self, SubscriptionIndex index, const Message* m, Sink origin, bint imported) except -1
    cdef int route_groups(
        self, SubscriptionIndex index, const Message* m, Sink origin, Sink source, bint imported, queues
    ) except -1
    cdef int to_member(self, list group, size_t first, const Message* m, Sink origin, bint imported) except -1
    cdef int to_links(
        self, SubscriptionIndex index, RemoteReceivers remote, const Message* m, Sink origin, Sink source,
        bint imported, queues,
    ) except -1
    cdef RemoteSubscription choose(
        self, SubscriptionIndex index, SharedGroup group, const Message* m, Sink origin, Sink source, bint imported,
        int* taken,
    )
    cdef int hand_on(self, SinkSubscription sub, const Message* m, Sink origin, bint imported) except -1
    cdef int import_stream(self, SinkSubscription sub, const Message* m, Sink origin) except -1
    cdef int pass_on(self, SinkSubscription sub, const Message* m, Sink origin, bint imported) except -1
    cdef int to_client(self, SinkSubscription shown, SinkSubscription sub, const Message* m, Sink origin) except -1
    cdef int to_stream(self, SinkSubscription sub, const Message* m, Sink origin) except -1

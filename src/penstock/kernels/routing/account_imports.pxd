"""Messages across accounts: imported services, their answers, imported streams."""
from libc.stdint cimport int64_t, uint64_t
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.wire.dispatch cimport SubjectMapper
from penstock.kernels.ingest.batches cimport FastSubject
from penstock.kernels.wire.sinks cimport Message, Sink, SinkSubscription
from penstock.kernels.routing.subscription_index cimport AwaitedReplies, MatchResult, SubscriptionIndex

cpdef enum ReplyEnd:
    REPLY_DONE = 0          # answered
    REPLY_UNDELIVERED = 1   # no receiver for the request or for its reply
    REPLY_EXPIRED = 2       # the response threshold has passed
    REPLY_UNWANTED = 3      # the requester has unsubscribed

# Rewrites subjects that match one filter.
cdef class Rewriter:
    cdef size_t wanted              # tokens of the source that have to be located
    cdef size_t count               # parts of the destination
    cdef Py_ssize_t* tokens         # per part: index of the source's token; TEXT or TAIL
    cdef list texts                 # per part: its text, or None
    cdef size_t tail                # index of the source's token at which its tail begins
    cdef const char** starts        # of the source's tokens, scratch
    cdef OutBuffer out              # result of the last rewrite()
    cdef int rewrite(self, const char* subject, size_t n) except -1

# Replaces the routing step of a service import. Used by message traces.
cdef class RouteHook:
    cdef readonly bint only         # nothing is delivered: no answer will come
    cdef int route(self, ServiceImportSink sink, const Message* m, Sink origin) except -1

# A service of another account, in the index of the importing one.
cdef class ServiceImportSink(Sink):
    cdef readonly SubscriptionIndex index       # of the exporting account
    cdef ReplyTable replies                     # of the exporting account
    cdef SubscriptionIndex home                 # of the importing account
    cdef ReplyTable home_replies
    cdef Rewriter rewriter
    cdef public SubjectMapper mapper            # mappings of the exporting account, or None
    cdef readonly bint share, streamed
    cdef readonly int64_t threshold_ns
    cdef object describe, chain, measure
    cdef OutBuffer body
    cdef readonly bint allow_trace              # do traces go on in the exporting account?
    cdef RouteHook hook                         # None, or routes the current message
    cdef bytes requested_subject                # its subject in the importing account, for the hook
    cdef bint busy
    cdef int pass_on(self, SinkSubscription sub, const Message* m, Sink origin, bint chained) except -1
    cdef bytes info(self, Sink origin)
    cdef int add_info(self, Message* m, Sink origin, bint chained) except -1
    cdef int put_body(self, Message* m, const char* header, size_t header_len, bytes info) except -1

# Forwards the replies to one request to the requester.
cdef class ReplySink(Sink):
    cdef readonly SinkSubscription subscription     # its subject receives the replies; it is in no index
    cdef readonly bytes to                      # the requester's reply subject (of a fast batch: the first)
    cdef bytes family                           # of a fast batch: `<prefix>.<id>` of its replies; else None
    cdef size_t prefix_len                      # of the prefix
    cdef readonly SubscriptionIndex index       # of the requester's account
    cdef readonly int64_t at                    # ns: time of the request, or of the last reply
    cdef readonly int64_t threshold_ns
    cdef readonly bint streamed
    cdef readonly object measurement
    cdef ReplyTable table                       # of the exporting account, which holds this sink
    cdef ReplyTable asking                      # of the requester's account
    cdef MatchResult match
    cdef bint has_interest(self) except -1

# The open requests to an account's services.
cdef class ReplyTable(AwaitedReplies):
    cdef SubscriptionIndex index
    cdef dict waiting                           # {subject: ReplySink}
    cdef dict families                          # {(requester's index, `<prefix>.<id>`): ReplySink}
    # {reply subject in this account: its ReplySink in another account's table, or a dict of several}
    cdef dict asked
    cdef object clock
    cdef public object on_first                 # None, or called when the table stops being empty
    cdef readonly bytes prefix
    cdef uint64_t random_state
    cdef ReplySink open(
        self, SubscriptionIndex index, ReplyTable asking, bytes to, bint streamed, int64_t threshold_ns,
        object measurement,
    )
    cdef ReplySink open_family(
        self, SubscriptionIndex index, ReplyTable asking, bytes to, const FastSubject* fast,
        int64_t threshold_ns, object measurement,
    )
    cpdef int close(self, ReplySink sink, int why) except -1
    cdef bytes new_subject(self)
    cdef int note_asked(self, ReplySink sink) except -1
    cdef int forget_asked(self, ReplySink sink) except -1
    cdef int end_unwanted(self, bytes to) except -1
    cdef ReplySink _waiting_for(self, const char* subject, size_t n)

# An imported stream, in the exporting account's index: one for each subscription of the importing account.
cdef class StreamImportSink(Sink):
    cdef readonly SinkSubscription target
    cdef Rewriter rewriter
    cdef readonly bint allow_trace              # do traces go on in the importing account?

cdef int hand_over(SinkSubscription sub, const Message* shown, const Message* inner, Sink origin) except -1
cdef int route_imported(
    SubscriptionIndex index, const Message* shown, const Message* inner, Sink origin
) except -1
# The subject of a message in the importing account; `sub` is the subscription of `stream_import`.
cdef bytes local_name(StreamImportSink stream_import, SinkSubscription sub, const Message* m)

"""Messages across accounts: imported services, their answers, imported streams."""
from libc.stdint cimport int64_t, uint64_t
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.wire.dispatch cimport SubjectMapper
from penstock.kernels.ingest.batches cimport FastSubject
from penstock.kernels.wire.sinks cimport Message, Sink, SinkSubscription
from penstock.kernels.routing.subscription_index cimport AwaitedReplies, MatchResult, SubscriptionIndex

cpdef enum ReplyEnd:
    REPLY_DONE = 0          # answered
    REPLY_UNDELIVERED = 1   # nobody took the request, or its answer
    REPLY_EXPIRED = 2       # the response threshold is over
    REPLY_UNWANTED = 3      # who asked listens no more

# What subjects of one filter are called elsewhere.
cdef class Rewriter:
    cdef size_t wanted              # tokens of the source that have to be found
    cdef size_t count               # pieces
    cdef Py_ssize_t* tokens         # per piece: number of the source's token; TEXT or TAIL
    cdef list texts                 # per piece: its text, or None
    cdef size_t tail                # the source's token at which its tail begins
    cdef const char** starts        # of the source's tokens, scratch
    cdef OutBuffer out              # what the last rewrite() made
    cdef int rewrite(self, const char* subject, size_t n) except -1

# Takes part in what an import does: routes in place of it. For traces.
cdef class RouteHook:
    cdef readonly bint only         # nothing is delivered: no answer will come
    cdef int route(self, ImportSink sink, const Message* m, Sink origin) except -1

# A service of another account, in the index of the importing one.
cdef class ImportSink(Sink):
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
    cdef RouteHook hook                         # None, or routes the message that comes now
    cdef bytes asked_for                        # its subject in the importing account, for the hook
    cdef bint busy
    cdef int pass_on(self, SinkSubscription sub, const Message* m, Sink origin, bint chained) except -1
    cdef bytes info(self, Sink origin)
    cdef int add_info(self, Message* m, Sink origin, bint chained) except -1
    cdef int put_body(self, Message* m, const char* header, size_t header_len, bytes info) except -1

# Who awaits the answers to one request.
cdef class ReplySink(Sink):
    cdef readonly SinkSubscription subscription     # its subject is where answers go; in no index
    cdef readonly bytes to                      # the reply subject of who asked (of a fast batch: the first)
    cdef bytes family                           # of a fast batch: `<prefix>.<id>` of its replies; else None
    cdef size_t prefix_len                      # of the prefix
    cdef readonly SubscriptionIndex index       # of who asked
    cdef readonly int64_t at                    # ns: the request, or the last answer
    cdef readonly int64_t threshold_ns
    cdef readonly bint streamed
    cdef readonly object measurement
    cdef ReplyTable table                       # where it is; and of who asked
    cdef ReplyTable asking
    cdef MatchResult match
    cdef bint has_interest(self) except -1

# The requests that an account has not answered yet.
cdef class ReplyTable(AwaitedReplies):
    cdef SubscriptionIndex index
    cdef dict waiting                           # {subject: ReplySink}
    cdef dict families                          # {(index of who asks, `<prefix>.<id>`): ReplySink}
    # {reply subject: what it waits for in other accounts, a ReplySink, or a dict of several}
    cdef dict asked
    cdef object clock
    cdef public object on_first                 # None, or called when the first one waits
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

# A stream of another account, in the index of the exporting one: one for each subscription that gets it.
cdef class ShadowSink(Sink):
    cdef readonly SinkSubscription target
    cdef Rewriter rewriter
    cdef readonly bint allow_trace              # do traces go on in the importing account?

cdef int hand_over(SinkSubscription sub, const Message* shown, const Message* inner, Sink origin) except -1
cdef int route_imported(
    SubscriptionIndex index, const Message* shown, const Message* inner, Sink origin
) except -1
# What a message to `sub`, a shadow's subscription, is called where it stands for another one.
cdef bytes local_name(ShadowSink shadow, SinkSubscription sub, const Message* m)

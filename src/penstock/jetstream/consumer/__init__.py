"""One consumer: its state machine, delivery and acks.

Read first `consumer_replica.py`, then `consumer_delivery.py`. The kernel's pump moves messages from the log
to receivers, and its ack state records deliveries and acks; these modules decide when, to whom, and what is
written.

    consumer_replica.py    apply, write, deliver, on_time; its configuration, position and info
    consumer_delivery.py   runs the pump: what goes to which receiver
    standby.py             consumers of a stream that follows: their state, ready for a new leader
    late_sending.py        what a consumer without acks sends, until its group has committed the delivery
    consumer_ports.py      what consumers use of their account
    consumer_config.py     checks and defaults of configurations
    consumer_subscriptions.py
                           routes acks to consumers, and notifies those that wait for messages
    pull_requests.py, push.py
                           receivers: waiting pull requests, or a deliver subject with flow control; their
                           idle heartbeats
    ack_handler.py         acks other than plain ones, and confirmations
    redelivery.py          ack waits, backoff, NAK delays
    groups.py              priority groups and pins
    dead_letters.py        moves messages that were given up to another stream
    consumer_effects.py    statuses, confirmations and advisories, until the engine releases them
    consumer_advisories.py
                           events and metrics about one consumer
    state.py               stored state: a snapshot with a journal
    start.py               start positions by deliver policy
    work_queue.py          rules for consumers of a work queue
    interest.py            notices when a deliver subject gains or loses subscribers
    fair_scheduler.py      the order in which consumers deliver in a tick

Invariants: a delivery is written in the tick that sent it, after it was sent, so a crash repeats it but loses
none; an ack is confirmed only after it is written.
"""

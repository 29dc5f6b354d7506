"""The hot paths of StreamLog, which is what Python uses."""

class LogCore:
    """Counters of a log. `bytes` is the sum of cost_of() of the live messages, as reported to users."""

    first_seq: int
    """Of the first live message; last_seq + 1 when there is none."""
    last_seq: int
    messages: int
    bytes: int
    first_ts: int
    """Of the first live message, ns; 0 when there is none."""
    last_ts: int
    """Of the last message stored, ns, whether it is live or not; 0 before the first."""
    removals: int
    """Grows at each removal of a message that a consumer might still read."""
    lost: int
    """Messages whose records were damaged."""
    rewrites: int
    """Blocks rewritten or dropped."""
    block_size: int
    durable: bool
    storing: int
    """Not 0 while publishes are stored: removals make room for them."""

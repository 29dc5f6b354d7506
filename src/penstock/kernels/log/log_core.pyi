"""The part of StreamLog that every message passes; Python uses StreamLog."""

class LogCore:
    """Counters of a log. `bytes` is the sum of what the live messages count, as users see it (cost_of)."""

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
    """Grows whenever a message goes that a consumer might still ask for."""
    lost: int
    """Messages whose bytes turned out not to be what was written."""
    rewrites: int
    """Blocks rewritten or dropped."""
    block_size: int
    durable: bool
    storing: bool
    """True while publishes are stored: what is removed meanwhile makes room for them."""

"""Who is told at once of messages that come and go: consumers with filters, each of its own."""

class Follower:
    """Base of what follows a log."""

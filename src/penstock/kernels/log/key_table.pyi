"""What Python sees of the table of open batches: the bases of what is kept in it."""

class KeyEntry:
    """What a KeyTable holds."""

class KeyTable:
    """Entries by their keys."""

"""What Python sees of headers that ask for a trace."""

def asks(header: bytes, parent: bool) -> bool:
    """Does a header block name a destination of traces? With `parent`, a `traceparent` asks as well."""

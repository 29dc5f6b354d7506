"""Nothing here is for Python: see streamlog.restore()."""

"""For other kernels only: what the header block of a publish asks of a stream."""

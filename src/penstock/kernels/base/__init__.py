"""Primitives of the kernels, independent of NATS: memory, hash tables, histograms, prefetch hints."""

"""Primitives of the kernels: memory, tables, hints to the processor. Nothing here knows of messages."""

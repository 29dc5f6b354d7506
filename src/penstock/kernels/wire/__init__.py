"""Bytes to frames and frames to bytes: parsing, dispatching, encoding, out buffers."""

"""Sockets: the only place that owns them. Connections, the listener, backlogs of slow receivers."""

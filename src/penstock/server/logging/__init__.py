"""The server's log: lines, where they go, and protocol traces."""

"""Storage of streams and consumers: message blocks on disk and in memory, recovery, consumer journals."""

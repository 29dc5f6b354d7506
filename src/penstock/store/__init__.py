"""What streams and consumers leave behind: message blocks on disk and in memory, recovery, journals."""

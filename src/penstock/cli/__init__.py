"""The command line: `penstock <command>`. `serve` is quick to start; other commands load what they need."""

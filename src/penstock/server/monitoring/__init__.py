"""What operators look at: HTTP pages, metrics, system requests, message traces."""

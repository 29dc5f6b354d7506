"""Health checks for monitoring systems: `penstock server check ...`.

    check_result.py      what a check found, and its output for Nagios, Prometheus, JSON and people
    connection_checks.py connections, requests, credentials files
    server_checks.py     a server, its JetStream usage and its cluster
    stream_health.py     streams, consumers, messages, buckets

The functions judge facts that are passed in: they send nothing, so that tests need no server. Thresholds and
texts follow the official command line, so that existing alerts keep working.
"""

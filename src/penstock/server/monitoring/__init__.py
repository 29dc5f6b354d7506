"""Monitoring of the server.

- `monitor`, `monitor_http`, `pages`: the HTTP pages, served by a thread. `metrics`, `metric_families`:
  what Prometheus reads.
- `system_service`, `system_control`: requests and events of the system account.
- `message_trace`: message traces (ADR-41). `server_counters`: totals and closed sessions.
"""

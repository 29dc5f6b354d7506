"""Monitoring of the server.

- `monitor`, `monitor_http`, `pages`: the HTTP pages, served by a thread. `metrics`, `metric_families`:
  what Prometheus reads.
- `web_server_ports`: the server as the web page (`penstock.web`) uses it.
- `system_service`, `system_control`: requests and events of the system account.
- `message_trace`: message traces (ADR-41). `server_counters`: totals and closed sessions.
"""

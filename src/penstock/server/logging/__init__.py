"""The server's log: line formats (`logs`), outputs (`log_spool`, `syslog`) and protocol traces."""

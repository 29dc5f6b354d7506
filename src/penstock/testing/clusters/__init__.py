"""Clusters of server processes for tests: processes, configuration, and proxies that partition them.

reserved_ports       ports that stay free while a server restarts
loop_thread          an event loop in a thread of its own
fault_proxies        TCP proxies between servers, which hold up what one sends to another
server_process       one server: its files, and its process
process_cluster      the cluster: start, faults, readiness, leaders
sync_process_cluster the same without asyncio
"""

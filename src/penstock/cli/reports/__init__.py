"""Facts about servers for the command line: requests to the system account, and tables of the answers.

system_requests.py   pages of servers, by broadcast or from one
server_tables.py     tables of servers, connections, accounts, JetStream and health
event_texts.py       advisories, metrics and server events as text
"""

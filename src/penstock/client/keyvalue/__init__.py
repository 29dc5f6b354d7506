"""Key-value buckets on streams (ADR-8, ADR-48), as the official clients store them.

Read first `key_value.py` (the public object). `key_value_manager.py` is the part of `JetStream` that creates
and lists buckets.

    key_subjects.py, bucket_config.py   names, subjects and configurations
    key_entry.py                        what a stored message says about a key
    key_writes.py                       single writes and their refusals
    key_batch.py                        writes of several keys
    bulk_get.py, key_watch.py           reading many keys at once, and following them
    lease.py, lock.py, election.py      keys that one client at a time holds
"""

"""Object stores on streams (ADR-20), as the official clients store them.

Read first `object_store.py` (the public object). `object_store_manager.py` is the part of `JetStream` that
creates and lists stores.

    object_config.py, object_info.py            configurations; what is recorded about an object
    chunk_source.py, chunk_upload.py, block_hash.py
                                                putting: reading, storing and hashing chunks
    object_reader.py, object_watch.py           getting and watching
    store_errors.py                             refusals of servers as errors about stores
"""

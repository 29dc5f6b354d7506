"""Pipelines between streams and Spark that most people need, ready to run and to copy.

    archive(spark, "ORDERS", "/data/orders", servers)     a stream into Parquet, verified, incremental
    archived(spark, "/data/orders")                       that archive as a table
    table(spark, "ORDERS", "/data/orders", servers)       archive and stream as one table
    replay(spark, "/data/orders", "ORDERS2", servers)     an archive into a stream
    analyse(...), redrive(...)                            a stream of dead letters
    statistics(...)                                       rates, subjects, gaps, latencies
    enrich(...)                                           two kinds of messages joined into a third

Each may be run again after any failure, shows its progress when given a rich console, and returns what it
did, which `report.py` draws as an HTML page. `penstock pipeline ...` is the same from the command line.
"""

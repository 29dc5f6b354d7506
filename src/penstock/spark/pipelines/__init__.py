"""Common pipelines between streams and Spark, to run as they are or to copy.

    archive(spark, "ORDERS", "/data/orders", servers)     a stream into Parquet, Delta or Iceberg, verified
    archived(spark, "/data/orders")                       that archive as a table
    table(spark, "ORDERS", "/data/orders", servers)       archive and stream as one table
    replay(spark, "/data/orders", "ORDERS2", servers)     an archive into a stream
    analyse(...), redrive(...)                            inspect and republish dead letters
    statistics(...)                                       rates, subjects, gaps, latencies
    enrich(...)                                           join two kinds of messages into a third stream
    delta_batches(...), iceberg_batches(...)              functions for foreachBatch that write once

Each can be repeated after any failure, shows its progress on a rich console if given one, and returns a
summary that `report.py` renders as an HTML page. `penstock pipeline ...` runs them from the command line.
"""

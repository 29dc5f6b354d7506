"""Functions for `foreachBatch` that write each micro-batch once, whatever is killed.

    orders.writeStream.foreachBatch(delta_batches("/data/orders", name="orders")).option(...).start()

Spark repeats a micro-batch that it does not know to be committed, with the same number and, from source
`jetstream`, with the same messages. A repeated write changes nothing: Parquet overwrites the folder of the
micro-batch, Delta keeps the number of a writer's last transaction, an Iceberg snapshot has it as a property,
in the same commit as the rows.

name: of the writer. It belongs to the checkpoint: a new checkpoint counts from zero, so give it another
name, or its micro-batches are taken for repetitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WriteBatch = Callable[["DataFrame", int], None]

BATCH_PROPERTY = "penstock.batch."


def parquet_batches(path: str) -> WriteBatch:
    """Writes each micro-batch to `<path>/batch=<number>`.

    A folder without a file `_SUCCESS` belongs to a micro-batch that is being written, or was killed.
    """
    folder = path.rstrip("/")

    def write(rows: DataFrame, batch_id: int) -> None:
        rows.write.mode("overwrite").parquet(f"{folder}/batch={batch_id:012d}")

    return write


def delta_batches(path: str, *, name: str) -> WriteBatch:
    """Appends each micro-batch to the Delta table at `path`."""

    def write(rows: DataFrame, batch_id: int) -> None:
        transaction = {"txnAppId": name, "txnVersion": str(batch_id)}
        rows.write.format("delta").mode("append").options(**transaction).save(path)

    return write


def iceberg_batches(table: str, *, name: str) -> WriteBatch:
    """Appends each micro-batch to an Iceberg table (catalog.database.table), which must exist.

    A repetition is recognised while the table has the snapshot of the last micro-batch: do not expire it
    before the query is started again.
    """
    quoted = ".".join(f"`{part}`" for part in table.split("."))
    # Options of a write have no case.
    key = BATCH_PROPERTY + name.replace("'", "").lower()

    def write(rows: DataFrame, batch_id: int) -> None:
        sql = f"SELECT max(CAST(summary['{key}'] AS BIGINT)) AS last FROM {quoted}.snapshots"
        last = rows.sparkSession.sql(sql).collect()[0].last
        if last is None or last < batch_id:
            rows.writeTo(quoted).option(f"snapshot-property.{key}", str(batch_id)).append()

    return write

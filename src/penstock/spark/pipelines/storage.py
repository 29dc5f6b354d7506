"""Access to small files through Spark's Hadoop file systems: local directory, HDFS, object store.

Rejected: Python's file API (an archive in an object store would need another library and other credentials
than Spark's).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Folder:
    """A directory, created on the first write."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._jvm: Any = spark._jvm
        self._root = self._jvm.org.apache.hadoop.fs.Path(path)
        self._files = self._root.getFileSystem(spark._jsc.hadoopConfiguration())
        self.path = path.rstrip("/")

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)

    def names(self) -> list[str]:
        """Sorted names of its files and directories; empty if it does not exist."""
        if not self._files.exists(self._root):
            return []
        return sorted(status.getPath().getName() for status in self._files.listStatus(self._root))

    def read(self, name: str) -> bytes:
        """Content of a file."""
        stream = self._files.open(self._path(name))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically: to a temporary name, then rename. Raises OSError."""
        beside = self._path(f".{name}.tmp")
        stream = self._files.create(beside, True)
        try:
            stream.write(content)
        finally:
            stream.close()
        self._files.delete(self._path(name), False)
        if not self._files.rename(beside, self._path(name)):
            raise OSError(f"{self.path}/{name} could not be written")

    def remove(self, name: str) -> None:
        """Delete a file, or a directory recursively."""
        self._files.delete(self._path(name), True)

"""What Python sees of the commits of atomic batches."""

from penstock.kernels.ingest.ingest import PlainLimits
from penstock.kernels.ingest.republish import Republisher
from penstock.kernels.ingest.staging import StagedBatch
from penstock.kernels.log.message_ids import MessageIds
from penstock.kernels.log.stream_log import StreamLog

def check_staged(batch: StagedBatch, log: StreamLog, limits: PlainLimits, ids: MessageIds, now: int) -> bool:
    """May store_staged() store the batch as it is? False: it may not, or its headers ask for more than the
    kernels know. now -- ns, what the dedupe window ends at."""

def store_staged(
    batch: StagedBatch,
    log: StreamLog,
    limits: PlainLimits,
    ids: MessageIds,
    ts: int,
    republisher: Republisher | None,
) -> int:
    """Stores the messages as one unit at `ts` (ns): returns the sequence of the last."""

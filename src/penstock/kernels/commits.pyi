"""What Python sees of the commits of atomic batches."""

from penstock.kernels.ingest import PlainLimits
from penstock.kernels.messageids import MessageIds
from penstock.kernels.republish import Republisher
from penstock.kernels.staging import StagedBatch
from penstock.kernels.streamlog import StreamLog

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

"""All entries, in the order in which they run."""

from __future__ import annotations

from reproduce_entries.baselines import BASELINES
from reproduce_entries.bytes_sent import BYTES
from reproduce_entries.codec_error import CODEC_ERROR
from reproduce_entries.demo_ablation import DEMO_ABLATION
from reproduce_entries.dgc import DGC_ENTRY
from reproduce_entries.equal_budgets import EQUAL_BUDGETS
from reproduce_entries.gtopk_model import GTOPK_MODEL
from reproduce_entries.lags_sgd import LAGS_SGD
from reproduce_entries.outer_loss import OUTER_LOSS
from reproduce_entries.outer_members import OUTER_MEMBERS
from reproduce_entries.outer_pruned import OUTER_PRUNED
from reproduce_entries.outer_utilisation import OUTER_UTILISATION
from reproduce_entries.selection_cost import SELECTION_COST
from reproduce_entries.sketched_sgd import SKETCHED_SGD
from reproduce_entries.streaming_bandwidth import STREAMING_BANDWIDTH
from reproduce_entries.theorem1 import THEOREM1
from reproduce_entries.volume import VOLUME
from reproduce_entries.where_it_pays import WHERE_IT_PAYS

ENTRIES = (
    BYTES,
    VOLUME,
    THEOREM1,
    SELECTION_COST,
    GTOPK_MODEL,
    CODEC_ERROR,
    DEMO_ABLATION,
    SKETCHED_SGD,
    DGC_ENTRY,
    LAGS_SGD,
    OUTER_LOSS,
    OUTER_PRUNED,
    OUTER_MEMBERS,
    OUTER_UTILISATION,
    STREAMING_BANDWIDTH,
    BASELINES,
    EQUAL_BUDGETS,
    WHERE_IT_PAYS,
)

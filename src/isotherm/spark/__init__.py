"""Reading tiered topics in Spark: `session()` starts one that finds `format("isotherm")`."""

from isotherm.spark.progress import OffsetsBehindLatest, offsets_behind_latest
from isotherm.spark.session import session

__all__ = ["OffsetsBehindLatest", "offsets_behind_latest", "session"]

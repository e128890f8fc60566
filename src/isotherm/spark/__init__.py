"""Reading tiered topics in Spark: `session()` starts one that finds `format("isotherm")`."""

from isotherm.spark.session import session

__all__ = ["session"]

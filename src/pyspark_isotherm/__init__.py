"""Found by Spark itself: it imports every top-level `pyspark_*` module and registers its
`DefaultSource`, so that `format("isotherm")` works without any set-up."""

from pyspark_isotherm.default_source import DefaultSource

__all__ = ["DefaultSource"]

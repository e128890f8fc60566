"""The names of the layouts, for options: importing them loads no layout."""

AIVEN = "aiven"
LOCAL_TIERED_STORAGE = "local-tiered-storage"

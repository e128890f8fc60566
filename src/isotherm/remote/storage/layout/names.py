"""The names of the layouts: for options, without what a layout needs."""

AIVEN = "aiven"
LOCAL_TIERED_STORAGE = "local-tiered-storage"

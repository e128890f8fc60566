"""Modules that stand before the installed ones in processes that tests start (tests/conftest.py)."""

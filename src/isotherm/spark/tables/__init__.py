"""Turns topics into tables: records become columns, Parquet files, and commits."""

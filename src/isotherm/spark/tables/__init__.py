"""Topics as tables: from records to columns, Parquet files, and commits."""

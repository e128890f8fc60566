"""Benchmarks: Isotherm beside Apache Kafka on the same data, client and machine."""

"""The oracle: a real Apache Kafka, against which Isotherm is tested and measured."""

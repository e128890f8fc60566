"""Other projects' test suites, run as they are against Isotherm and against Apache Kafka.

python -m suites SUITE --broker isotherm    every case's outcome, one a line
python -m suites SUITE --broker kafka

Sources come from public registries into `.tools` of this checkout; nothing of theirs is kept here.
What passes is in `tests/interop/<suite>/passes.txt`, Kafka's outcomes are in `kafka.txt` beside it.
"""

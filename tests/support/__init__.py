"""Support code of our own tests and benches. Users test their plug-ins with isotherm.testing."""

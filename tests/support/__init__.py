"""What our own tests and benches are made of; what users run against their plug-ins is isotherm.testing."""

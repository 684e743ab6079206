"""A fleet on paper before a real control plane, for measurements: `python -m tests.bench.fleet`."""

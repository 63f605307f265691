"""Which rate does a deployment hold? SLOs, probes, the search that chooses them, and its answer with an interval."""

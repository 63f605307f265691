"""What did `probe-transfer` find? From its run directory alone: results, carriers, fits, predictions, verdicts."""

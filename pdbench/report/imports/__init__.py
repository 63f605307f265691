"""What did another tool measure? Its result files become a run directory, each figure with its definition beside it."""

"""A file for each family of causes: when one is named, with which evidence, and what to change first."""

"""What should be expected? Pure functions, no I/O."""

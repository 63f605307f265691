"""What does the deployment do right now? Scrapes as running totals, windows of them, and a view."""

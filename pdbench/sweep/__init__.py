"""What does the client see? Plan, arrivals, prompts, requests, rows."""

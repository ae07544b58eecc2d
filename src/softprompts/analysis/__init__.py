"""What tuned prompts look like, cost and mean."""

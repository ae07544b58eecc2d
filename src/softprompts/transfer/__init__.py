"""Transfer: a prompt for a new task starts from prompts of tasks like it (Vu 2022, SPoT)."""

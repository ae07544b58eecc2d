"""Transfer: a prompt for a new task starts from prompts of similar tasks (Vu 2022, SPoT)."""

"""A study: a grid of runs that resumes, on one process, several, or a Ray cluster."""

"""A study: a grid of runs that resumes, on one process, several or a Ray cluster."""

STUDY = "study.yaml"
"""The study file, in the folder of a study."""

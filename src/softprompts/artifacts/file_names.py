"""The names of the files and folders of runs, cohorts and studies.

`run_folder` and `study_folder` say what they hold. Nothing here needs torch, unlike these two.
"""

CARD, PROMPT, EMBEDDING = "prompt.json", "prompt.safetensors", "embedding.safetensors"
CONFIG, METRICS, CURVE = "config.yaml", "metrics.jsonl", "curve.png"
CONFUSION, PREDICTIONS = "confusion.png", "predictions.json"
CHECKPOINT, MODEL, TRACKERS = "checkpoint.safetensors", "model", "trackers"
TOURNAMENT, TOURNAMENT_PLOT, CANDIDATES = "tournament.json", "tournament.png", "tournament"
COHORT_TABLE, EXPLANATION = "cohort.csv", "explanation.json"

STUDY_FILE, CELLS, WORKERS = "study.yaml", "cells", "workers"
PLAN, RESULT, LEASE = "cell.json", "result.json", ".claim-"

"""Studies and sweeps: many runs from one file, compared with intervals and verdicts."""

"""Studies and sweeps: many runs from a file, compared with intervals and verdicts."""

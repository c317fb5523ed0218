"""One run: session, checkpoints, resuming, signals, progress, phases."""

"""Agent search traces to summary-enhanced supervised fine-tuning, from raw files to a model."""

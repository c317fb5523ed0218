"""What a model has learned of the two tasks, measured on held-out questions, and shown."""

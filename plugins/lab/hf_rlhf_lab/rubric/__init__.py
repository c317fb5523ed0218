"""Train reward models on rubric grades: `--plugin rubric_reward`."""

"""Reward models from grades by a rubric: `--plugin rubric_reward`."""

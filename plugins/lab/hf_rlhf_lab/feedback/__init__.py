"""Data by language models: preferences under a constitution, revised responses, rubric grades."""

"""Create data with language models: preferences by a constitution, revisions, rubric grades."""

"""Judges: who answers the questions of rubrics and citation checks. See docs/judges.md."""

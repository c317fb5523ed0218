"""Judges answer questions of rubrics and citation checks: see docs/reference/judges.md."""

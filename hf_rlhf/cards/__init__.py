"""Model cards: a record rendered as Markdown, and its plots."""

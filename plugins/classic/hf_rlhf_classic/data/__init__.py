"""Rows in the forms people have them, as SFT, preference and prompt datasets."""

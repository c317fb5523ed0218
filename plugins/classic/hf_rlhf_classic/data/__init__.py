"""Load common forms of rows as SFT, preference and prompt datasets."""

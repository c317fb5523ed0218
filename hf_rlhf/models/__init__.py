"""Models: located, loaded, adapted, merged."""

"""Run files and components: YAML becomes typed values with their places; the registry of plugins."""

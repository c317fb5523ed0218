"""A Hugging Face Hub on your own disk: a server that the real clients push to and pull from."""

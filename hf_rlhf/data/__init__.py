"""Rows from anywhere: files, the Hub, chat and rollout forms."""

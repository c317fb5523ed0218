"""A LoRA adapter per role on a shared base."""

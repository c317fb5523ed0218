"""One LoRA adapter per role on one shared base."""

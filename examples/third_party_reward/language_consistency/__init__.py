"""The reward `language_consistency` for hf_rlhf, and rows that say which language is asked for."""

"""A small, fast model learns from the translations of larger models (`nmt distill`)."""

"""Start from a trained model: low-rank adapters, and models that are only partly the same."""

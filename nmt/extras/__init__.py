"""Optional features: deleting a folder removes the feature and nothing else."""

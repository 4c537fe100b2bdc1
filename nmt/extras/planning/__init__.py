"""Programs that test or estimate the other rooms: dry run, proof of exact resume, self-check."""

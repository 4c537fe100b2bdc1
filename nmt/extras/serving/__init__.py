"""Models -> an HTTP service: requests of all clients share batches."""

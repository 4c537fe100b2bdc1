"""An HTTP server for models. Requests of all clients share batches."""

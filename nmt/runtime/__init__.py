"""What runs a trained model: engines behind one protocol."""

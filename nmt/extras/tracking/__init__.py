"""Trackers of experiments: TensorBoard, Weights & Biases, MLflow, Trackio (`training.trackers`)."""

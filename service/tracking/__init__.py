"""The metrics of a run in the formats of other tools: TensorBoard, MLflow, Weights & Biases and Aim."""

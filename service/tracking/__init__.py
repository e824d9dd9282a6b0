"""The metrics of a run in the formats of other tools: TensorBoard and MLflow."""

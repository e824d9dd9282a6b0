"""What the four papers measured, against what the cost model predicts."""

"""What `millrace plan` predicts from one worker's profile and the links, against runs on throttled links."""

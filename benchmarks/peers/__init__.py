"""What Millrace is held against: written from public documentation, in its best form, on the same work."""

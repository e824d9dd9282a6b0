"""Examples that are no images: columns of numbers, tables in files, text."""

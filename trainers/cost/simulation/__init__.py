"""A run event by event, with computing times that are drawn: what closed forms take the mean of."""

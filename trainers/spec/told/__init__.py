"""Parts of the recipe that are no numbers of the update: a file each. Imports no torch."""

"""How the database came to its present form, one step a file. `service.database` runs what is missing."""

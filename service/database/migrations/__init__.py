"""How the database came to its present form, one step a file. `service.database.connection` runs what is missing."""

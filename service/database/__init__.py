"""The database of one service, SQLite or PostgreSQL: connection, tables, migrations, and what is kept in it."""

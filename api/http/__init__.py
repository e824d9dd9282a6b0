"""The REST API: routes, authentication, problems, streams, and the server that serves them."""

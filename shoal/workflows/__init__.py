"""Flows of more than one request, and the values that they read: what the client library and the HTTP API share."""

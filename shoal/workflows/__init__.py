"""Flows of more than one request, and the values that they read. The client library and the HTTP API share them."""

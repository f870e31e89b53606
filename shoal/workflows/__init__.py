"""Flows of more than one request, and the values that they read. The client library and the HTTP API share them.

They are a layer of their own, because a second merge in the HTTP layer would drift from the client's, and in the node they
would be requests that are no units of the store.
"""

"""The `shoal` command: it stands on the public client, and on the node only to serve and to verify."""

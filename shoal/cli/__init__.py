"""The `shoal` command. It uses the public client, and the node only to serve and to verify."""

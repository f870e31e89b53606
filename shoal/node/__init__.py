"""The node: data types over storage, the service that answers requests, and their life cycle."""

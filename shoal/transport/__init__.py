"""The dialling side of the wire: links to nodes, and a session over them that reconnects."""

"""Standard Yjs clients over WebSockets."""

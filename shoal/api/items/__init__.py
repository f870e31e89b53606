"""Memory items over HTTP."""

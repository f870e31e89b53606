"""Changes, one module per family: how each is applied, checked when it comes from a peer, and sent to others."""

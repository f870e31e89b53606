"""How a node serves requests about worklists and inboxes."""

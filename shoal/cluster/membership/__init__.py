"""Who the members of a cluster are: do nodes agree, and how the list changes."""

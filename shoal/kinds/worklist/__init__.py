"""The queues of a thread, its inbox and its worklists, and the claims of their entries."""

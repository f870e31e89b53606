"""The members of the cluster as this node knows them, and changes of them."""

"""The quorum register: linearizable compare-and-set for a few small keys of the cluster (CASPaxos)."""

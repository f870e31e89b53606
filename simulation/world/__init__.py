"""The simulated world: machines, disks, clocks and the network between them."""

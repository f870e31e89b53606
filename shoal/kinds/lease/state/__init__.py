"""The pure state of leases: the rows, and how changes fold into them. It does no I/O and reads no clock."""

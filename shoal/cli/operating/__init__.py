"""Commands and signals of people who run nodes: when the next one may be stopped, and what a service manager is told."""

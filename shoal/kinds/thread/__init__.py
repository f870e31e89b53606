"""A thread: the durable state of one agent, as checkpoints in a DAG with branches."""

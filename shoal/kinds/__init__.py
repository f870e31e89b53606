"""The kinds of state that users keep, a folder each: all of a feature is in one place.

    state       pure: rows, changes, and how they fold. It may import `shoal.crdt`.
    requests    the requests and replies, and with them routes, commands and session messages
    changes     how each change is applied, checked and what it erases (`shoal.node.appliers.applier`)
    handler     how a node serves the requests; `serving` if that takes several modules
    flows       operations of several requests, for handles and HTTP alike
    handle      the handle that users hold

Each part lives by the rules of its layer (`tests/test_layers.py`), and each is a module, or a package of modules.
"""

"""The engine's shared types as the rest of Shoal and its users get them: pycrdt's own, with two differences.

Positions in a text are characters, as in a Python string: the engine counts UTF-8 bytes, and takes a position within a
character as leave to destroy its surroundings. And what is put into a document is checked before the engine sees it.
"""

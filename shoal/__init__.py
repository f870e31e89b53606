"""Shoal: a durable, replicated state layer for AI agents.

    async with shoal.open("./state") as store:
        thread = store.space("crew").thread("researcher-1")
        await thread.append("messages", "hello")
        state = (await thread.load()).state

An acknowledged write survives `kill -9` and power loss. `shoal.connect` gives
the same store over the network; `shoal.sync` has both as blocking calls.

Names are imported when they are first used (PEP 562), so that `import shoal` is
cheap. `shoal.public` lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"  # Declared here once, for the package, the node's status and the build.

if TYPE_CHECKING:
    from shoal.public import *
else:
    _MODULES = ("config", "errors", "replies", "sync", "values")  # Modules that are public names themselves.

    _INNER = ("logs", "page")  # Those that only Shoal itself imports, as `from shoal import page`.

    # The names with which a program begins. They do not load `shoal.public`, which imports all the others.
    _ENTRANCES = {"open": "shoal.opening", "connect": "shoal.opening", "Config": "shoal.config"}

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name in _MODULES or name in _INNER:
            return import_module(f"shoal.{name}")
        if name in _ENTRANCES:
            found = globals()[name] = getattr(import_module(_ENTRANCES[name]), name)
            return found
        if name.startswith("_") and name != "__all__":
            raise AttributeError(f"module 'shoal' has no attribute {name!r}", name=name)
        public = import_module("shoal.public")
        try:
            found = globals()[name] = getattr(public, name)
        except AttributeError:
            raise AttributeError(f"module 'shoal' has no attribute {name!r}", name=name) from None
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *_MODULES, *__getattr__("__all__")})

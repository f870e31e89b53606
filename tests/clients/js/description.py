"""What the types of the JavaScript client are made of: the schemas of the OpenAPI description, and the client's sources.

python -m tests.clients.js.description              # the description, for openapi-typescript
python -m tests.clients.js.description --sources    # what clients/js/types/SOURCES says if the types are current
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from shoal.api import openapi
from shoal.api.routes import ROUTES

CLIENT = Path(__file__).parents[3] / "clients" / "js"
SOURCES = CLIENT / "types" / "SOURCES"
VERSIONS = Path(__file__).parents[2] / "npm" / "bundling.sh"
CHECKED = ("build.sh", "check.ts", "package.json", "tsconfig.json")


def description() -> str:
    """The description without its paths: the client asks them by itself."""
    whole = openapi.describe(ROUTES, version="0")
    schemas = {"schemas": dict(sorted(whole["components"]["schemas"].items()))}
    text = json.dumps({**whole, "paths": {}, "tags": [], "components": schemas})
    return json.dumps(json.loads(text, object_hook=_null_last), indent=1, sort_keys=True)


def _null_last(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with `null` as the last of alternatives: msgspec 0.21 has it as the first of some, which means the same."""
    alternatives = schema.get("anyOf")
    if isinstance(alternatives, list):
        schema["anyOf"] = sorted(alternatives, key=lambda alternative: alternative == {"type": "null"})
    return schema


def sources() -> str:
    """The name and the SHA-256 of the types, and of all that they are made of, one in a line."""
    files = [path for folder, kind in (("src", "*.js"), ("types", "*.d.ts")) for path in sorted((CLIENT / folder).glob(kind))]
    files += [CLIENT / name for name in CHECKED]
    parts = {"description": description().encode(), VERSIONS.name: VERSIONS.read_bytes()}
    parts |= {str(path.relative_to(CLIENT)): path.read_bytes() for path in files}
    return "".join(f"{sha256(content).hexdigest()}  {name}\n" for name, content in parts.items())


if __name__ == "__main__":
    sys.stdout.write(sources() if "--sources" in sys.argv[1:] else description())

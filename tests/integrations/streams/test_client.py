"""What docs/integrations/durable-streams.md shows of the protocol's own client works as it is written."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.cli.conftest import served
from tests.integrations.streams.node import ran

TEXT = (Path(__file__).parents[3] / "docs" / "integrations" / "durable-streams.md").read_text()
[PROGRAM] = re.findall(r"^```js\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


async def test_the_client_works_as_it_is(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (_, url):
        program = Path(sys.prefix) / "shoal-guide.mjs"
        program.write_text(PROGRAM.replace("http://127.0.0.1:7400", url))
        assert await ran(str(program), url=url) == (0, '[{"token":"Hello"},{"token":"!"}]\n')

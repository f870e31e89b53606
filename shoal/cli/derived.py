"""Commands derived from the declarations of operations: `counter add`, `register set`, `budget grant`, …

Laws:
- A command's arguments and options are fields of the request, with the protocol's types and bounds. Packed values are
  given as JSON.
- A command that destroys asks first, unless `--yes` is given. With `--dry-run` it says whether there is such an object.
- The command prints the field of the reply that the declaration names: alone, or with its name as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import cache
from inspect import Parameter
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from shoal import values
from shoal.cli.arguments import json_of
from shoal.cli.command import Run, Work, command_of
from shoal.cli.ids import holder_origin
from shoal.cli.options import By, DryRun, Expect, Key, Yes
from shoal.cli.output import to_text
from shoal.client.store import Space, Store
from shoal.names import check_name
from shoal.protocol.declared import AtLeast, Cli, Shape, declared
from shoal.protocol.requests import Deleted, Request, reply_of
from shoal.records import NamedTuple
from shoal.workflows.spaces import exists

Reclaim = Annotated[
    str, typer.Option("--reclaim", metavar="ORIGIN", help="A holder that is gone for good, whose rights move here.")
]


class _Option(NamedTuple):
    annotation: Any
    default: Any = None
    find: Callable[[Space, str, str], Awaitable[Any]] | None = None  # Finds the value, from the object's name and the text.


_OPTIONS = {
    "key": _Option(Key),
    "expect": _Option(Expect),
    "by": _Option(By, ""),
    "reclaimed": _Option(Reclaim, "", holder_origin),
}
"""The options, by the fields that they fill."""


class _Argument(NamedTuple):
    annotation: Any
    take: Callable[[Any], Any] = lambda given: given


def add_derived(group: typer.Typer, name: str) -> None:
    """Add the commands that are declared for a group, in the order in which they are declared."""
    for kind, declaration in declared().items():
        for cli in declaration.cli:
            within, command = cli.command.split()
            if within == name:
                told = f"{cli.help}\n\nExample: {cli.example}"
                group.command(command, help=told, context_settings=_settings(kind, cli))(_command(kind, cli))


def _command(kind: type[Request[Any]], cli: Cli) -> Callable[..., None]:
    named = kind.__struct_fields__[1]
    arguments = {field: _argument(_types(kind)[field], field) for field in cli.arguments}
    options = {field: _OPTIONS[field] for field in cli.options}
    tries = bool(cli.destroys) and reply_of(kind) is Deleted
    agreeing: dict[str, tuple[Any, Any]] = {"yes": (Yes, False)} if cli.destroys else {}
    agreeing |= {"dry_run": (DryRun, False)} if tries else {}

    def begin(run: Run, name: str, *, yes: bool = False, dry_run: bool = False, **given: Any) -> Work:
        if cli.destroys and not yes and not dry_run:
            what = cli.destroys.format(name=name, **given)
            typer.confirm(f"Delete {what} of space {run.space} on every node, for good?", abort=True, err=True)
        fields = given | {field: argument.take(given[field]) for field, argument in arguments.items()}

        async def work(store: Store) -> None:
            space = store.space(run.space)
            check_name(named, name)
            if dry_run:
                is_there = await exists(store.connection, space.name, named, name)  # type: ignore[arg-type]
                run.show({cli.shows: is_there}, json.dumps(is_there))
                return
            for field, option in options.items():
                if option.find is not None and fields[field]:
                    fields[field] = await option.find(space, name, fields[field])
            request: Any = kind(**{"space": space.name, named: name}, **fields)
            shown = _shown(await store.connection.write(request, key=None, durability=None), cli.shows)
            run.show({cli.shows: shown}, shown if isinstance(shown, str) else to_text(shown))

        return work

    return command_of(
        begin,
        {
            "name": (Annotated[str, typer.Argument(metavar="NAME", show_default=False)], Parameter.empty),
            **{field: (argument.annotation, cli.defaults.get(field, Parameter.empty)) for field, argument in arguments.items()},
            **{field: (option.annotation, option.default) for field, option in options.items()},
            **agreeing,
        },
    )


@cache  # As many as there are requests.
def _types(kind: type[Request[Any]]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _settings(kind: type[Request[Any]], cli: Cli) -> dict[str, Any]:
    """Settings that let a negative number be an argument, if the command takes one."""
    types = [_types(kind)[field] for field in cli.arguments]
    return {"ignore_unknown_options": any(_bare(each) is int and _least(each) is None for each in types)}


def _argument(kind: Any, field: str) -> _Argument:
    """A field as an argument: text, a number, or JSON."""
    if Shape.VALUE in _marks(kind):
        about = typer.Argument(metavar="JSON", help="The value, as JSON. - is standard input.", show_default=False)
        return _Argument(Annotated[str, about], lambda text: values.encode(json_of(text, "the value"), where="value"))
    if get_origin(_bare(kind)) is list and Shape.VALUE in _marks(get_args(_bare(kind))[0]):
        about = typer.Argument(metavar="JSON…", help="The elements, each as JSON. - is standard input.", show_default=False)
        return _Argument(Annotated[list[str], about], _elements)
    about = typer.Argument(metavar=field.upper(), min=_least(kind), show_default=False)
    return _Argument(Annotated[_bare(kind), about])


def _elements(texts: list[str]) -> list[bytes]:
    return [values.encode(json_of(text, "an element"), where="element") for text in texts]


def _shown(reply: Any, field: str) -> Any:
    """A field of a reply; if it is a list of packed values, these."""
    kind, found = get_type_hints(type(reply), include_extras=True)[field], getattr(reply, field)
    if get_origin(kind) is list and Shape.VALUE in _marks(get_args(kind)[0]):
        return [values.decode(each) for each in found]
    return found


def _least(kind: Any) -> int | None:
    return next((mark.number for mark in _marks(kind) if isinstance(mark, AtLeast)), None)


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _marks(kind: Any) -> tuple[Any, ...]:
    return get_args(kind)[1:] if get_origin(kind) is Annotated else ()

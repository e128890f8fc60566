"""Groups of options that several commands have, as one parameter of each.

A group is a dataclass whose fields are options as typer declares them. `with_groups` shows typer
the fields in place of the group, so the help is that of single options.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from inspect import Parameter
from typing import Any


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command for typer: each of its groups becomes the group's options, in their order."""
    groups: dict[str, tuple[type, list[str]]] = {}
    parameters: list[Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        # Typer passes every value by its name.
        if dataclasses.is_dataclass(parameter.annotation) and isinstance(
            parameter.annotation, type
        ):
            options = _options(parameter.annotation)
            groups[parameter.name] = (parameter.annotation, [option.name for option in options])
            parameters += options
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, (group, options) in groups.items():
            values[name] = group(**{option: values.pop(option) for option in options})
        command(**values)

    shown: Any = run
    shown.__signature__ = inspect.Signature(parameters)
    shown.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _options(group: type) -> list[Parameter]:
    types = typing.get_type_hints(group, include_extras=True)
    return [
        Parameter(
            field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
        )
        for field in dataclasses.fields(group)
    ]

"""Extension of griffe for the site's reference: signatures as shown by help().

Where @shows(arguments) lets inspect see each argument in place of **arguments, the reference has
them as well, in the same order and with the same defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from griffe import (
    Attribute,
    Class,
    Expr,
    ExprName,
    Extension,
    Function,
    Module,
    Parameter,
    ParameterKind,
    Parameters,
)


def decorated(module: Module | Class) -> Iterator[tuple[Function, Class]]:
    """Yield functions and methods to which @shows() is applied, each with its argument."""
    for each in module.members.values():
        if isinstance(each, Function):
            for decorator in each.decorators:
                if shown := re.fullmatch(r"shows\((\w+)\)", str(decorator.value)):
                    found = each.module[shown[1]]
                    yield each, found.final_target if found.is_alias else found
        elif isinstance(each, Module | Class):
            yield from decorated(each)


def fields(arguments: Class) -> dict[str, Attribute]:
    """Return the fields of a TypedDict, its bases' first, like typing."""
    found: dict[str, Attribute] = {}
    for base in arguments.resolved_bases:
        found.update(fields(base))
    return {**found, **arguments.attributes}


def default(field: str, config: Class) -> str | Expr:
    """Return a field's default in Config, a constant as its value; None if it is not in Config."""
    if field not in config.attributes or config.attributes[field].value is None:
        return "None"
    value = config.attributes[field].value
    if isinstance(value, ExprName):
        constant = config.modules_collection[value.canonical_path]
        return constant.value
    return value


class Shows(Extension):
    """Expands **arguments where @shows() does, once the package is read."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Expand them in all modules of the package."""
        config = pkg["state.config.Config"]
        for function, arguments in list(decorated(pkg)):
            owner = function.parent if function.name == "__init__" else function
            variadic = [p for p in function.parameters if p.kind is ParameterKind.var_keyword]
            text = owner.docstring.value
            if any(re.search(rf"(?m)^    {each.name}: ", text) for each in variadic):
                owner.docstring.parsed  # noqa: B018  # while they are in the signature
            named = [
                Parameter(
                    name,
                    annotation=each.annotation,
                    kind=ParameterKind.keyword_only,
                    default=default(name, config),
                )
                for name, each in fields(arguments).items()
            ]
            own = [each for each in function.parameters if each not in variadic]
            function.parameters = Parameters(*own, *named)

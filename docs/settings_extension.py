"""For mkdocstrings: the fields of our configurations as parameters, with their defaults and their help texts."""

from collections.abc import Iterator
from typing import Any

import griffe


class Settings(griffe.Extension):
    """Reads `setting(default, help)` and `section(kind, help)`, of which the documentation would show the call."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Keep the default as the value, and the help text as the docstring."""
        call = attr.value
        if isinstance(call, griffe.ExprCall) and call.canonical_path.rpartition(".")[2] in ("setting", "section"):
            default, text = call.arguments[:2]
            attr.value = f"{default}()" if call.canonical_path.endswith("section") else default
            attr.docstring = griffe.Docstring(_text(text), parent=attr)
            attr.labels.add("setting")

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Add the help texts to the docstrings of the classes, above their examples."""
        for kind in _classes(pkg):
            fields = [member for member in kind.all_members.values() if "setting" in member.labels]
            if fields and kind.docstring:
                text, heading, examples = kind.docstring.value.partition("Examples:\n")
                listed = "\n".join(f"    {field.name}: {field.docstring.value}" for field in fields)
                kind.docstring.value = f"{text.rstrip()}\n\nArgs:\n{listed}\n\n{heading}{examples}"


def _classes(module: griffe.Module) -> Iterator[griffe.Class]:
    for member in module.members.values():
        if isinstance(member, griffe.Class):
            yield member
        elif isinstance(member, griffe.Module):
            yield from _classes(member)


def _text(expression: Any) -> str:
    """Return a string that the code may give in several pieces."""
    return " ".join(str(eval(str(expression), {"__builtins__": {}})).split())

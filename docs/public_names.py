"""Lets the API pages say `::: joslim.slim`, wherever the name is defined.

The names in `joslim` are imported on first use, and some modules have the name of the function that
they define. Griffe, which reads the sources without importing them, would find the module. This
extension follows the imports of each public name to its definition, so that no page holds the path
of a module.
"""

from typing import Any

from griffe import Alias, Extension, GriffeLoader, Module


class PublicNames(Extension):
    def on_package(self, *, pkg: Module, loader: GriffeLoader, **kwargs: Any) -> None:
        for name in sorted(pkg.exports or ()):
            target = definition(f"{pkg.path}.{name}", loader)
            pkg.set_member(str(name), Alias(str(name), target, parent=pkg))


def definition(path: str, loader: GriffeLoader) -> str:
    """The path under which a name is defined, found by following its imports."""
    module, _, name = path.rpartition(".")
    imported = loader.modules_collection[module].imports.get(name)
    return path if imported in (None, path) else definition(imported, loader)

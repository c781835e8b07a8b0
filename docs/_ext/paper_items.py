"""Tables of the paper's items, read from `reproduction/paper/items.yaml` at each build.

    ```{items} figure
    ```

The arguments are kinds of items. `{states}` is a table of the states and their meaning.
"""

import os
import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from reproduction.paper import catalogue

REPOSITORY = Path(__file__).resolve().parents[2]
NOT_PAGES = {".png", ".csv", ".py", ".svg"}


class Items(SphinxDirective):
    """A table of all items of the paper of some kinds."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        self.env.note_dependency(str(catalogue.ITEMS))
        kinds = self.arguments[0].split()
        chosen = [one for one in catalogue.load_items() if one.kind in kinds]
        if not chosen:
            raise self.error(f"the paper has no {self.arguments[0]}")
        rows = "".join(f"| {' | '.join(self._cells(one))} |\n" for one in chosen)
        header = "| | description | state | command | see |\n|---|---|---|---|---|\n"
        return self.parse_text_to_nodes(header + rows)

    def _cells(self, one: catalogue.PaperItem) -> list[str]:
        name = f"{one.kind.capitalize()} {one.number}"
        what = f"{one.what}; {one.note}" if one.note else one.what
        command = f"`{one.command}`" if one.command else ""
        return [name, what.replace("|", "\\|"), one.state, command, self._link(one.see)]

    def _link(self, see: str) -> str:
        """Return a link to a page of the site, or the name of another file."""
        if not see:
            return ""
        path = Path(see)
        if path.suffix in NOT_PAGES:
            return f"`{see}`"
        if (table := re.fullmatch(r"results/tables/(\w+)\.md", see)) is not None:
            return f"[{table[1]}](/tables/{table[1]}.md)"
        page = os.path.relpath(REPOSITORY / see, Path(self.env.doc2path(self.env.docname)).parent)
        return f"[{path.stem}]({page})"


class States(SphinxDirective):
    """A table of the states of items, with the number of items in each."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        self.env.note_dependency(str(catalogue.ITEMS))
        states = [one.state for one in catalogue.load_items()]
        rows = "".join(
            f"| {state} | {meaning} | {states.count(state)} |\n"
            for state, meaning in catalogue.STATES.items()
        )
        return self.parse_text_to_nodes(f"| state | meaning | how many |\n|---|---|---:|\n{rows}")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("items", Items)
    app.add_directive("states", States)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

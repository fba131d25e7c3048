"""Templates to HTML. Every value is escaped, because datasets may contain anything.

The templates are files of the package. `templates/base.html` is the frame of all pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import BaseLoader, Environment, StrictUndefined, TemplateNotFound

from tokenmill.inspect.view.viewer import Page, make_link
from tokenmill.wording import count, counted, duration, harmless, one_line, size

SECTIONS = (
    ("/", "Overview", "o"),
    ("/documents", "Documents", "d"),
    ("/batches", "Batches", "b"),
    ("/runs", "Runs", "r"),
    ("/search", "Search", "s"),
)

Link = Callable[..., "str | None"]


class Templates:
    """Renders pages.

    `link` makes the URL of another page, or None if that page does not exist. `names` are values
    that all templates may use.
    """

    def __init__(
        self,
        *,
        link: Link = make_link,
        names: Mapping[str, Any] | None = None,
        static: str = "/static",
        is_export: bool = False,
    ) -> None:
        self._environment = Environment(
            loader=_PackageFiles(),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            optimized=False,  # constants are few, and looking for them takes a third of the time
        )
        self._environment.filters.update(
            count=count,
            counted=counted,
            duration=duration,
            one_line=one_line,
            pieces=_split,
            share=share,
            size=size,
            short=short,
            visible=visible,
        )
        self._environment.globals.update(
            {"link": link, "sections": SECTIONS, "static": static, "is_export": is_export}
            | dict(names or {})
        )

    def render(self, page: Page, **values: Any) -> str:
        """Return the HTML of a page."""
        template = self._environment.get_template(page.template)
        return template.render(page=page, **page.values, **values)


class _PackageFiles(BaseLoader):
    """Loads templates from the package's folder, without Jinja's search through the import system."""

    def get_source(
        self, environment: Environment, template: str
    ) -> tuple[str, str | None, Callable[[], bool]]:
        del environment
        place = files(__package__) / "templates" / template
        if "/" in template or not place.is_file():
            raise TemplateNotFound(template)
        return place.read_text("utf-8"), None, lambda: True


def _split(text: str) -> tuple[Any, ...]:
    from tokenmill.inspect.view.spelling import split_text  # few pages show text

    return split_text(text)


def share(part: float, whole: float) -> str:
    """Format a share in percent; shares that are not 0 never look like 0.

    >>> share(1, 3), share(1, 10**6), share(0, 5), share(0, 0), share(999_999, 10**6)
    ('33.3%', '< 0.1%', '0%', '0%', '> 99.9%')
    """
    if not part or not whole:
        return "0%"
    percent = 100 * part / whole
    if percent < 0.1:
        return "< 0.1%"
    if 99.9 < percent < 100:
        return "> 99.9%"
    return f"{percent:.1f}%".replace(".0%", "%")


def visible(text: str) -> str:
    r"""Format the text of a token so that line ends and hidden characters are visible.

    >>> visible("\n"), visible(" a"), visible("\x1b")
    ('↵', '␣a', '\\x1b')
    """
    shown = harmless(text).replace("\n", "↵").replace("\t", "⇥")
    return shown.replace(" ", "␣") if not shown.strip(" ") or shown.startswith(" ") else shown


def short(number: float) -> str:
    """Format a large number in a few characters.

    >>> short(950), short(1500), short(15_000_000), short(2.04e12)
    ('950', '1.5 k', '15 M', '2.04 T')
    """
    for power, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= power:
            return f"{number / power:.3g} {unit}"
    return f"{number:.3g}"


def list_parts(values: Sequence[tuple[str, float]], width: float) -> list[tuple[str, float, float]]:
    """Return the place and width of each part of a bar: (name, x, width).

    >>> list_parts([("a", 1), ("b", 3)], 100)
    [('a', 0.0, 25.0), ('b', 25.0, 75.0)]
    """
    whole = sum(value for _, value in values) or 1
    parts, at = [], 0.0
    for name, value in values:
        parts.append((name, at * width / whole, value * width / whole))
        at += value
    return parts

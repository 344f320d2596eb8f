"""The generated pages say what the code says."""

from pathlib import Path

import pytest

from isotach.documentation import PAGES

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    """A reader of docs/ reads what the code does today; `make docs` writes it again."""
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), f"docs/{name} is old: run `make docs`"

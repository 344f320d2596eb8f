"""The images' recipes: what goes in, pinned, and who runs it. They were built by hand: docs/deploying.md says how."""

import re
import tomllib
from pathlib import Path

import pytest
from support.command_lines import accepted

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "deploy").glob("*.Dockerfile"))


def instructions(recipe: Path) -> list[tuple[str, str]]:
    """Instructions and their arguments, continued lines joined."""
    text = re.sub(r"^#.*\n", "", recipe.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    lines = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return [(name, re.sub(r"\s+", " ", rest)) for name, rest in lines]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_every_package_of_the_wheel_goes_in(recipe: Path) -> None:
    """What the wheel is built from is copied, and not kept out by .dockerignore."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = {word for name, rest in instructions(recipe) if name == "COPY" for word in rest.split()[:-1]}
    wanted = {*packages["packages"], "pyproject.toml", "constraints.txt", "README.md"}
    assert wanted <= copied
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored
    assert {f"!{name}" for name in wanted} <= set(ignored)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_it_is_pinned_and_runs_as_nobody(recipe: Path) -> None:
    """One exact base for all, constraints for what pip installs, no root, a command that exists."""
    told = instructions(recipe)
    (base,) = {rest for name, rest in told if name == "ARG"}
    assert re.fullmatch(r"PYTHON_IMAGE=\S+/python:\d+\.\d+\.\d+-slim-\w+", base)
    assert base in {rest for name, rest in instructions(RECIPES[0]) if name == "ARG"}
    assert all(rest.startswith("${PYTHON_IMAGE}") for name, rest in told if name == "FROM")
    assert any("PIP_CONSTRAINT=/src/constraints.txt" in rest for name, rest in told if name == "ENV")
    last = dict(told)
    assert last["USER"] == "65534:65534"
    assert last["ENTRYPOINT"] == '["isotach"]'
    (command,) = re.findall(r'"([^"]+)"', last["CMD"])
    if not command.startswith("-"):
        accepted([command])
    extras = re.findall(r"\.whl\)\[(\w+)\]", " ".join(rest for name, rest in told if name == "RUN"))
    assert extras == [recipe.stem]

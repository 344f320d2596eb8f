"""Builds the wheel, installs it in a clean environment, and smokes it: `python -m tests.support.wheel`.

To add to the smoke: one line in `SMOKE`.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = ("--columns", "gpu=gpu_uuid,node=node,value=sgemm_ms,time=time", "--unit", "ms", "--lower-is-better")
SAMPLE = ROOT / "docs" / "sgemm-example.csv"


def run(*command: str | Path, cwd: Path) -> str:
    """The command's standard output; ends the program, showing what it printed, if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ISOTACH_"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Build, install, smoke; says what it did."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        run(sys.executable, "-m", "build", "--wheel", "--outdir", work / "dist", ROOT, cwd=ROOT)
        wheel = next((work / "dist").glob("*.whl"))
        # An agent alone: what a GPU node gets.
        agent = work / "agent"
        venv.create(agent, with_pip=True)
        pip = (
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--constraint",
            ROOT / "constraints.txt",
        )
        run(agent / "bin" / "python", *pip, f"{wheel}[agent]", cwd=work)
        run(agent / "bin" / "isotach", "agent", "--help", cwd=work)
        present = run(agent / "bin" / "python", "-m", "pip", "list", "--format=freeze", cwd=work).lower()
        heavy = [name for name in ("polars", "pyarrow", "duckdb", "fastapi", "scikit") if f"\n{name}" in f"\n{present}"]
        if heavy:
            sys.exit(f"the agent's environment holds {heavy}")
        # The same environment with the server's extra: import and rank a file.
        run(agent / "bin" / "python", *pip, f"{wheel}[server]", cwd=work)
        isotach = agent / "bin" / "isotach"
        run(isotach, "--version", cwd=work)
        run(isotach, "import", SAMPLE, "--store", work / "fleet.duckdb", *COLUMNS, cwd=work)
        ranking = run(isotach, "rank", "--store", work / "fleet.duckdb", "--format", "csv", cwd=work)
        if len(ranking.splitlines()) < 10 or "gpu_uuid" not in ranking:
            sys.exit(f"the ranking of the installed wheel is not one:\n{ranking}")
        print(f"{wheel.name}: installed in a clean environment, imported and ranked {SAMPLE.name}")


if __name__ == "__main__":
    main()

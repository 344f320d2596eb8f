"""The command line itself: help, settings and where they come from, secrets, extras, and what it loads.

To add a command: nothing here; every test walks the list.
"""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
from support.processes import clean_environment, free_port, processes, run

from isotach import settings
from isotach.cli import COMMANDS

SECRET = "do-not-print-me"
HEAVY = ("polars", "duckdb", "fastapi", "uvicorn", "pyarrow", "numpy", "scipy", "sklearn", "confluent_kafka", "orjson")


def python(code: str, *, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that runs this."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=clean_environment(**(environment or {})),
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_setting_of_the_command(command: str) -> None:
    """--help exits with 0 and shows each flag and its environment variable, and no secret's flag."""
    done = run(command, "--help", environment={"ISOTACH_TOKEN": SECRET, "COLUMNS": "200"})
    assert (done.returncode, done.stderr) == (0, "")
    assert SECRET not in done.stdout
    for setting in settings.of(command):
        assert (setting.flag + " " in done.stdout) != setting.secret, setting.name
        assert setting.environment in done.stdout, setting.name


def test_every_setting_belongs_to_a_command_that_exists() -> None:
    """No setting of the table is for nobody, and no name is there twice."""
    for setting in settings.SETTINGS:
        assert set(setting.commands) <= set(COMMANDS), setting.name
    names = [setting.name for setting in settings.SETTINGS]
    assert len(names) == len(set(names))


def test_an_unknown_setting_in_a_file_names_the_nearest(tmp_path: Path) -> None:
    """A typo is not passed over in silence."""
    config = tmp_path / "isotach.toml"
    config.write_text("windov_s = 10\n")
    done = run("window", "--config", config, "--bootstrap", "localhost:1")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"isotach: --config {config}: unknown setting 'windov_s'; did you mean 'window_s'?"
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port = [", "--config"),
        ("port = 'x'", "'x' is not a valid integer"),
        ("port = 70000", "65535"),
        (None, "No such"),
    ],
)
def test_a_bad_settings_file_is_refused_in_words(text: str | None, words: str, tmp_path: Path) -> None:
    """Broken TOML, a wrong type, a number out of range, a missing file."""
    config = tmp_path / "isotach.toml"
    if text is not None:
        config.write_text(text)
    done = run("up", "--config", config, "--store", tmp_path / "s.duckdb")
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr


SHOW = """
import click
from isotach import settings

@click.command()
@settings.options("up")
def command(**values):
    print(*(values[name] for name in ("port", "host", "window_s", "lateness_s", "collector", "place")))

command(ARGUMENTS)
"""


def test_a_flag_wins_over_the_environment_that_over_the_file_and_that_over_the_default(tmp_path: Path) -> None:
    """Each of four settings is said at one more place than the one before."""
    config = tmp_path / "isotach.toml"
    config.write_text(
        'port = 1\nhost = "file"\nwindow_s = 30\ncollector = ["none", "simulated"]\nplace = ["rack=r1"]\n'
    )
    code = SHOW.replace("ARGUMENTS", "['--port', '3']")
    environment = {"ISOTACH_PORT": "2", "ISOTACH_HOST": "environment", "ISOTACH_CONFIG": str(config)}
    done = python(code, environment=environment)
    assert done.stdout.strip() == "3 environment 30.0 30.0 ('none', 'simulated') ('rack=r1',)", done.stderr


def test_the_version_is_said() -> None:
    """--version names the program."""
    done = run("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "isotach,")


def test_a_wrong_command_or_flag_is_said_so() -> None:
    """Status 2 and the usage, no traceback."""
    for words in (("rnak",), ("rank", "--sotre", "x"), ("agent", "--interval-s", "0"), ("rank", "--gpus", "4")):
        done = run(*words)
        assert done.returncode == 2
        assert "Usage: isotach" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.processes
def test_secrets_show_in_no_process_list_and_no_log(tmp_path: Path) -> None:
    """A running server with a token, and an agent that it refuses, keep it to themselves."""
    port = free_port()
    environment = {"ISOTACH_TOKEN": SECRET}
    with processes(tmp_path) as site:
        server = site.start(
            "up", "up", "--store", tmp_path / "s.duckdb", "--port", port, "--collector", "none",
            "--log-level", "debug", environment=environment,
        )  # fmt: skip
        site.until(lambda: "API on" in server.output, "it listens")
        assert SECRET not in " ".join(psutil.Process(server.pid).cmdline())
        for words in (("rank",), ("explain", "GPU-1")):
            done = run(*words, "--server", f"http://127.0.0.1:{port}", environment=environment)
            assert SECRET not in done.stdout + done.stderr
        assert SECRET not in server.output
        assert server.stop() == 0


def test_secrets_of_kafka_show_in_no_error(tmp_path: Path) -> None:
    """A broken line of the security file is named by its number, a wrong setting by its name; values stay hidden."""
    config = tmp_path / "kafka.properties"
    for text, words in (
        (f"security.protocol=SASL_SSL\nsasl.password {SECRET}\n", "line 2"),
        (f"security.protocl=SASL_SSL\nsasl.password={SECRET}\n", "security.protocl"),
        (f"sasl.password={SECRET}\n", "sasl.password"),
    ):
        config.write_text(text)
        done = run("window", "--bootstrap", "127.0.0.1:1", "--kafka-config", config)
        assert done.returncode == 1
        assert words in done.stderr
        assert SECRET not in done.stdout + done.stderr


def test_a_bad_token_file_is_refused_without_being_shown(tmp_path: Path) -> None:
    """Two words, an empty file, no file."""
    token = tmp_path / "token"
    for text in (f"{SECRET} {SECRET}", "", None):
        token.unlink(missing_ok=True)
        if text is not None:
            token.write_text(text)
        done = run("rank", "--token-file", token)
        assert done.returncode == 1
        assert "--token-file" in done.stderr
        assert SECRET not in done.stderr


BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])

sys.meta_path.insert(0, Blocked())
from isotach.cli import main
main(ARGUMENTS)
"""
SERVER = ("polars", "duckdb", "fastapi", "uvicorn", "pyarrow", "orjson", "rich", "scipy", "sklearn", "confluent_kafka")


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["up"], "server"),
        (["demo"], "server"),
        (["rank", "--store", __file__], "server"),
        (["import", __file__], "server"),
        (["topology", __file__], "server"),
        (["score", "--bootstrap", "127.0.0.1:1"], "server"),
        (["window", "--bootstrap", "127.0.0.1:1"], "server"),
        (["serve", "--bootstrap", "127.0.0.1:1"], "server"),
        (["agent", "--collector", "simulated", "--bootstrap", "127.0.0.1:1"], "agent"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_without_an_extra_it_says_which_one_is_needed(arguments: list[str], extra: str) -> None:
    """One line with the command that installs it, status 1, no traceback."""
    done = python(BLOCKED.replace("MODULES", repr(SERVER)).replace("ARGUMENTS", repr(arguments)))
    assert done.returncode == 1
    assert f"pip install 'isotach[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_command_line_loads_nothing_heavy() -> None:
    """Help and an agent's start cost a node little."""
    code = f"import sys, isotach.cli; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = python(code)
    assert done.stdout.strip() == "[]", done.stderr
    helped = python("import sys, isotach.cli\ntry: isotach.cli.main(['agent', '--help'])\nfinally:"
                    f" print([name for name in {HEAVY!r} if name in sys.modules])")  # fmt: skip
    assert helped.stdout.splitlines()[-1] == "[]", helped.stderr

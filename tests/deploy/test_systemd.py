"""The systemd units: readable by systemd, made of commands and settings that exist, and able to do their work.

A new unit is tested as soon as it lies in deploy/systemd.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_lines import VARIABLES, accepted

from collectors.nvml.kernel_log import KERNEL_LOG
from isotach.reload import LIVE
from isotach.settings import SETTINGS, read_config

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
DROP_INS = sorted(FOLDER.glob("*.conf"))
PROGRAM = "/opt/isotach/bin/isotach"
NEWER = ("RestartSteps", "RestartMaxDelaySec")
"""Names that systemd before 254 passes over with a warning, as the units say."""


def lines(file: Path) -> list[tuple[str, str]]:
    """Names and values of a unit or an environment file, in order; those behind a `#` too if they are assignments."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        name, separator, value = line.removeprefix("#").partition("=")
        if separator and re.fullmatch(r"[A-Za-z_]+", name):
            found.append((name, value))
    return found


def values(file: Path) -> dict[str, str]:
    """What is in force in a unit, by name; of equal names the last."""
    text = file.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in text if re.match(r"[A-Za-z]+=", line))


def specified(text: str) -> str:
    """The text with systemd's specifiers in place."""
    return text.replace("%S", "/var/lib").replace("%i", "1").replace("%n", "unit.service")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_reads_it_without_a_complaint(unit: Path, tmp_path: Path) -> None:
    """`systemd-analyze verify`, with every drop-in, says nothing but what older versions say of newer names."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here: apt-get install systemd")
    name = unit.name.replace("@.", "@1.")
    ours = str(Path(sys.executable).with_name("isotach"))
    (tmp_path / name).write_text(unit.read_text(encoding="utf-8").replace(PROGRAM, ours), encoding="utf-8")
    for drop_in in DROP_INS:
        (tmp_path / f"{name}.d").mkdir(exist_ok=True)
        shutil.copy(drop_in, tmp_path / f"{name}.d")
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = [line for line in done.stderr.splitlines() if name in line and not any(newer in line for newer in NEWER)]
    assert (said, done.returncode) == ([], 0), done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_its_command_is_ours(unit: Path) -> None:
    """Each ExecStart is a command line that `isotach` accepts, and keeps its files where the unit may write."""
    program, *arguments = specified(values(unit)["ExecStart"]).split()
    assert program == PROGRAM
    told = accepted([argument for argument in arguments if argument not in ("--config", "/etc/isotach/agent.toml")])
    state = Path("/var/lib") / values(unit).get("StateDirectory", "")
    if "store" in told:
        assert told["store"].parent == state
    variable, _, value = specified(values(unit).get("Environment", "")).partition("=")
    assert variable in {*VARIABLES, ""}
    if variable == "ISOTACH_SPOOL":
        assert Path(value).parent == state


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_it_runs_as_nobody_in_particular(unit: Path) -> None:
    """A user of its own that is not root, nothing to gain, nothing to write but its state."""
    told = values(unit)
    assert told["DynamicUser"] == "yes"
    assert told["User"] not in ("", "root", "0")
    assert told["NoNewPrivileges"] == "yes"
    assert told["ProtectSystem"] == "strict"
    assert set(told["CapabilityBoundingSet"].split()) <= {"CAP_SYSLOG"}
    assert "MemoryMax" in told


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_it_starts_again_and_does_not_hammer(unit: Path) -> None:
    """It comes back for ever, later and later; a wrong command line is not tried again."""
    told = values(unit)
    assert told["Restart"] == "always"
    assert told["StartLimitIntervalSec"] == "0"
    assert int(told["RestartSec"]) >= 1
    assert int(told["RestartMaxDelaySec"]) >= 60
    assert told["RestartPreventExitStatus"] == "2"


def test_the_agents_sandbox_leaves_it_what_it_reads() -> None:
    """GPUs and the kernel's log stay in sight: what hides or closes devices is not set, and CAP_SYSLOG is held."""
    told = values(FOLDER / "isotach-agent.service")
    for name in ("PrivateDevices", "ProtectKernelLogs", "ProtectClock", "DeviceAllow", "DevicePolicy"):
        assert name not in told, f"{name} takes /dev/nvidia* or {KERNEL_LOG} from the agent"
    for name in ("ProcSubset", "ProtectProc", "PrivatePIDs"):
        assert name not in told, f"{name} hides /proc/driver/nvidia or the processes of jobs"
    assert told["AmbientCapabilities"] == "CAP_SYSLOG"


def test_the_environment_file_names_settings() -> None:
    """Every variable of isotach.env, given or offered, is a setting."""
    names = [name for name, _ in lines(FOLDER / "isotach.env")]
    assert "ISOTACH_BOOTSTRAP" in names
    assert set(names) <= VARIABLES
    assert len(names) == len(set(names))


def test_the_agents_file_names_its_settings(tmp_path: Path) -> None:
    """Every line that agent.toml offers is a setting of the agent."""
    text = (FOLDER / "agent.toml").read_text(encoding="utf-8")
    (tmp_path / "agent.toml").write_text(re.sub(r"^#(?=\w+ = )", "", text, flags=re.MULTILINE), encoding="utf-8")
    found = read_config(tmp_path / "agent.toml")
    assert {*LIVE, "interval_s"} < set(found)
    assert all("agent" in setting.commands for setting in SETTINGS if setting.name in found)


@pytest.mark.parametrize("drop_in", DROP_INS, ids=lambda drop_in: drop_in.stem)
def test_a_secret_reaches_a_process_as_a_file(drop_in: Path) -> None:
    """The drop-in hands over the file of root's by systemd's credentials, under the setting that reads it."""
    told = values(drop_in)
    credential, _, source = told["LoadCredential"].partition(":")
    variable, _, path = told["Environment"].partition("=")
    assert source.startswith("/etc/isotach/")
    assert variable in VARIABLES
    assert path == f"/run/credentials/%n/{credential}"

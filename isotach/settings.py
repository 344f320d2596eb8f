"""Every setting, once: name, type, default, unit, help. It drives flags, environment, config file and docs/settings.md.

To add a setting: one line in `SETTINGS`, naming the commands that take it, then use it there.
Precedence: flag, then `ISOTACH_<NAME>`, then the file given by `--config` (TOML), then the default.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from telemetry.errors import SettingsError

_Source = click.core.ParameterSource
_CONFIG = "isotach.config"  #: where a context keeps the file's path
SettingType = Literal["text", "integer", "number", "flag", "file", "choice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. `low` and `high` are inclusive; a secret is read from environment or file, and never printed."""

    name: str
    type: SettingType
    default: Any
    unit: str
    commands: tuple[str, ...]
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    many: bool = False
    secret: bool = False

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def environment(self) -> str:
        """The environment variable."""
        return "ISOTACH_" + self.name.upper()


LOG = ("agent", "window", "score", "serve", "replay", "doctor")
SERVERS = ("serve", "up")
AGENTS = ("agent", "up")
DCGM = (*AGENTS, "doctor")
READERS = ("rank", "explain", "place", "verdict")


def _s(
    name: str,
    type: SettingType,  # noqa: A002 - the field's name in the table
    default: Any,
    unit: str,
    commands: tuple[str, ...],
    help: str,  # noqa: A002 - the field's name in the table
    **more: Any,
) -> Setting:
    return Setting(name=name, type=type, default=default, unit=unit, commands=commands, help=help, **more)


# fmt: off
SETTINGS: tuple[Setting, ...] = (
    _s("bootstrap", "text", "", "host:port,...", LOG, "Kafka bootstrap servers. Without it an agent posts to --server."),
    _s("kafka_security_protocol", "choice", "", "", LOG, "How to speak to Kafka. Empty: sasl_ssl with --kafka-username, ssl with --kafka-ca-file, else plaintext.", choices=("", "plaintext", "ssl", "sasl_plaintext", "sasl_ssl")),
    _s("kafka_sasl_mechanism", "choice", "SCRAM-SHA-512", "", LOG, "How the user is proven to Kafka, where there is one.", choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")),
    _s("kafka_username", "text", "", "", LOG, "Kafka user; needs --kafka-password-file."),
    _s("kafka_password_file", "file", None, "file", LOG, "File that holds the Kafka user's password and nothing else."),
    _s("kafka_ca_file", "file", None, "file", LOG, "Certificates (PEM) that Kafka's must be signed by; the system's if empty."),
    _s("kafka_config", "file", None, "file", LOG, "Further librdkafka security settings (client certificates, other mechanisms), one `key=value` a line. Kept out of flags so that no secret shows in a process list."),
    _s("topic_prefix", "text", "", "", LOG, "Goes before every topic and group name: several sites on one cluster."),
    _s("telemetry_partitions", "integer", 16, "partitions", (*LOG, "up"), "Partitions of isotach.telemetry when it is created: the most window jobs that can share it.", low=1, high=10_000),
    _s("replication", "integer", 0, "replicas", LOG, "Replication factor of topics when they are created; 0 means 3, or fewer where there are fewer brokers.", low=0, high=15),
    _s("session_timeout_s", "number", 10.0, "s", ("window", "score"), "A job that is silent for this long loses its partitions to the others.", low=1, high=1_800),
    _s("server", "text", "http://127.0.0.1:8470", "URL", ("agent", "replay", *READERS, "doctor"), "Address of an Isotach API."),
    _s("token", "text", "", "", (*SERVERS, "agent", "replay", *READERS, "doctor"), "Bearer token that agents present and servers ask for. Empty: none is asked for.", secret=True),
    _s("token_file", "file", None, "file", (*SERVERS, "agent", "replay", *READERS, "doctor"), "File that holds the token; without it the environment variable ISOTACH_TOKEN does."),
    _s("host", "text", "127.0.0.1", "address", SERVERS, "Address the API listens on. Beyond loopback only if you say so."),
    _s("port", "integer", 8470, "port", (*SERVERS, "demo"), "Port the API listens on.", low=0, high=65_535),
    _s("metrics_host", "text", "127.0.0.1", "address", ("agent", "window", "score"), "Address of the process's own Prometheus metrics."),
    _s("metrics_port", "integer", 0, "port", ("agent", "window", "score"), "Port of the process's own Prometheus metrics; 0 serves none.", low=0, high=65_535),
    _s("store", "file", "isotach.duckdb", "file", SERVERS, "The DuckDB file. `up` keeps its journal beside it, as FILE.journal."),
    _s("topology", "file", None, "file", ("score", *SERVERS), "Where racks, blocks and NVLink domains are: our YAML, Slurm topology.conf or topology.yaml, Topograph JSON, `kubectl get nodes -o json`."),
    _s("window_s", "number", 60.0, "s", ("window", "up"), "Length of a window.", low=1, high=3_600),
    _s("lateness_s", "number", 30.0, "s", ("window", "up"), "How long a window waits for samples that come late; later ones go to the dead-letter topic.", low=0, high=3_600),
    _s("idle_s", "number", 60.0, "s", ("window", "up"), "A partition silent for this long has its clock moved, so that its last window closes.", low=1, high=86_400),
    _s("max_skew_s", "number", 60.0, "s", ("window", "up"), "A sample this far in the future is set aside and its node reported for clock skew.", low=1, high=86_400),
    _s("grace_s", "number", 90.0, "s", ("score", "up"), "The scorer closes a window without the partitions that have not told their progress by then.", low=1, high=86_400),
    _s("xid_policy", "file", None, "file", ("score", "up"), "YAML that says which XIDs count, how often, and what they lead to; what it leaves out keeps the default (docs/xid-policy.yaml)."),
    _s("breaker_ratio", "number", 0.15, "share of the fleet", ("score", "up"), "At most so many GPUs, and at least one, may be demoted by soft evidence within an hour; beyond that the breaker holds until an operator resets it.", low=0, high=1),
    _s("observe_only", "flag", False, "", ("score", "up"), "Publish scores and what each tier would be, and change no tier."),
    _s("stale_after_s", "number", 300.0, "s", SERVERS, "An answer older than this is marked stale and every tier in it is unknown.", low=1, high=604_800),
    _s("keep_windows_days", "integer", 30, "days", SERVERS, "Windows older than this leave the store.", low=1, high=3_650),
    _s("keep_history_days", "integer", 400, "days", SERVERS, "Hourly roll-ups, tier changes, events, measurements and jobs older than this leave the store.", low=1, high=36_500),
    _s("archive", "file", None, "folder", SERVERS, "Windows that leave the store go here first, as Parquet by site and day."),
    _s("node", "text", "", "", AGENTS, "This node's name as the scheduler knows it; the host name if empty."),
    _s("collector", "choice", ("auto",), "", AGENTS, "What to collect from; may be given several times. auto: dcgm where targets of it are set, else nvml where its library can be loaded, else nvidia_smi where the command is, else nothing.", choices=("auto", "none", "dcgm", "nvidia_smi", "nvml", "simulated"), many=True),
    _s("interval_s", "number", 1.0, "s", AGENTS, "Time between two samples of a GPU. nvidia_smi is never run more often than every 5 s.", low=0.1, high=3_600),
    _s("batch_s", "number", 10.0, "s", AGENTS, "Samples of one node are sent together for this long.", low=0.1, high=60),
    _s("spool", "file", None, "folder", ("agent", "doctor"), "Messages on their way are kept here until Kafka or the server has them, through outages and restarts; made if absent. Empty: in memory only, at most 64 MiB."),
    _s("spool_mb", "integer", 256, "MiB", ("agent",), "Most that the spool takes; beyond it the oldest telemetry is dropped, and counted.", low=1, high=1_048_576),
    _s("replay_speed", "number", 20.0, "x", ("agent",), "Pace at which telemetry that had to wait is sent, in times of that at which it was collected; 0 as fast as it goes.", low=0, high=10_000),
    _s("max_cpu_ratio", "number", 0.02, "share of a core", ("agent",), "An agent that takes more than this for a minute, child processes included, samples NVML or nvidia-smi half as often, down to an eighth, until it costs less. 0: whatever it costs.", low=0, high=64),
    _s("max_messages_per_s", "number", 20.0, "messages/s", AGENTS, "What one collector may say about one node, as a mean over ten seconds: events above it are told as a number, inventory waits. Not for simulated fleets and recordings. 0: no limit.", low=0, high=100_000),
    _s("nice", "integer", 10, "", ("agent",), "The agent's niceness, and that of its children; never lowered.", low=0, high=19),
    _s("expected_gpus", "integer", 0, "GPUs", AGENTS, "GPUs this node should have; 0 means that nobody said.", low=0, high=1_024),
    _s("proc", "file", Path("/proc"), "folder", (*AGENTS, "doctor"), "Where the processes of the host are. In a container: a mount of the host's /proc, unless the container shares the host's process numbers (hostPID)."),
    _s("pod_logs", "file", Path("/var/log/pods"), "folder", AGENTS, "Where the kubelet keeps logs of pods, in folders named NAMESPACE_NAME_UID: only the names of these are read. Without it a pod is known by its UID."),
    _s("jobs", "flag", True, "", AGENTS, "Find out which job runs on which GPU: with nvml, by the control groups of the processes on it. Only job ids are read; no user names, command lines or environments."),
    _s("place", "text", (), "level=value", AGENTS, "Where this node is, nearest level first; may be given several times: --place rack=r12 --place spine=s3.", many=True),
    _s("smi_file", "file", (), "file", ("agent",), "Read `nvidia-smi -q -x` captures instead of running the command; the file's stem names the node. May be given several times.", many=True),
    _s("dcgm_targets", "text", (), "host:port, URL or file", DCGM, "dcgm-exporters to scrape: addresses, or a Prometheus file_sd file (.json, .yml, .yaml), read again when it changes; a Prometheus's URL with /federate too. May be given several times.", many=True),
    _s("dcgm_dns", "text", (), "name:port", DCGM, "A DNS name all of whose addresses are dcgm-exporters, such as a headless service; asked again and again. May be given several times.", many=True),
    _s("dcgm_kubernetes", "text", "", "namespace/service:port", DCGM, "Inside Kubernetes: scrape the endpoints of this service, such as gpu-operator/nvidia-dcgm-exporter:9400. Needs the right to list endpointslices there."),
    _s("dcgm_interval_s", "number", 15.0, "s", DCGM, "Time between two scrapes of an exporter; no shorter than it looks itself (30 s if nobody changed it).", low=1, high=3_600),
    _s("dcgm_timeout_s", "number", 10.0, "s", DCGM, "An exporter that has not given its whole page by then has failed this time.", low=0.1, high=600),
    _s("dcgm_ca_file", "file", None, "file", DCGM, "Certificate authorities for exporters behind https; the system's if absent."),
    _s("fleet", "text", "small", "", AGENTS, "Simulated fleet: a built-in name (demo, small, longhorn-like, scale) or a YAML file."),
    _s("seed", "integer", 1, "", (*AGENTS, "demo"), "Seed of the simulated fleet: the same seed is the same fleet.", low=0, high=2**63 - 1),
    _s("start", "text", "now", "time", AGENTS, "When the simulated fleet begins: now, ISO 8601, or a number of seconds ago such as -3600."),
    _s("duration_s", "number", 0.0, "s", ("agent",), "Stop the simulated fleet after this much of its time; 0 never.", low=0, high=10**9),
    _s("speed", "number", 1.0, "x", ("agent", "replay"), "Pace of simulated or recorded time; 0 as fast as it goes. At 1 a simulated past is made up for at once; other paces begin at --start and slow down to the clock's once they reach it.", low=0, high=10**6),
    _s("shard", "text", "0/1", "i/n", ("agent",), "Simulate only the i-th of n parts of the fleet's nodes."),
    _s("truth", "file", None, "file", (*AGENTS, "demo"), "Write the simulated fleet's truth (true speeds, faults) to this file."),
    _s("log_level", "choice", "info", "", (*LOG, "up", "demo"), "How much is logged.", choices=("debug", "info", "warning", "error")),
)
# fmt: on


def of(command: str) -> tuple[Setting, ...]:
    """The settings a command takes."""
    return tuple(setting for setting in SETTINGS if command in setting.commands)


def options(command: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that gives a click command its settings as options, and `--config`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        function = click.option(
            "--config",
            type=click.Path(dir_okay=False),
            is_eager=True,
            expose_value=False,
            envvar="ISOTACH_CONFIG",
            callback=_load_config,
            help="TOML file with any of these settings.",
        )(function)
        for setting in reversed(of(command)):
            function = _option(setting)(function)
        return function

    return decorate


def _option(setting: Setting) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    unit = f" [{setting.unit}]" if setting.unit else ""
    shared: dict[str, Any] = {
        "default": setting.default,
        "envvar": setting.environment,
        "help": setting.help + unit,
        "show_default": setting.default not in (None, "", ()),
        "show_envvar": True,
        "multiple": setting.many,
    }
    if setting.secret:
        # A flag would show in the process list: environment and files only.
        return click.option(setting.flag, hidden=True, **{**shared, "show_default": False, "show_envvar": False})
    return click.option(setting.flag, type=_click_type(setting), **shared)


def _click_type(setting: Setting) -> click.ParamType[Any]:
    match setting.type:
        case "integer":
            return click.IntRange(
                min=None if setting.low is None else int(setting.low),
                max=None if setting.high is None else int(setting.high),
            )
        case "number":
            return click.FloatRange(min=setting.low, max=setting.high)
        case "choice":
            return click.Choice(setting.choices)
        case "file":
            return click.Path(path_type=Path)
        case "flag":
            return click.BOOL
        case "text":
            return click.STRING


def _load_config(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value:
        context.meta[_CONFIG] = Path(value)
        context.default_map = {**(context.default_map or {}), **read_config(Path(value))}


def reread(context: click.Context) -> dict[str, Any]:
    """The command's settings as they are if its file is read again now; flags and environment stay, and win.

    Raises SettingsError for a file that cannot be read, or holds what no setting can be.
    """
    path: Path | None = context.meta.get(_CONFIG)
    found = {} if path is None else read_config(path)
    values = dict(context.params)
    defaults = {setting.name: setting.default for setting in SETTINGS}
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in values or context.get_parameter_source(name) in (_Source.COMMANDLINE, _Source.ENVIRONMENT):
            continue
        try:
            values[name] = parameter.process_value(context, found.get(name, defaults[name]))
        except click.ClickException as error:
            raise SettingsError(f"--config {path}: {error.format_message()}") from None
    return values


def read_config(path: Path) -> Mapping[str, Any]:
    """Settings from a TOML file; raises SettingsError naming an unknown key and the nearest known one."""
    import tomllib  # here and below: an agent without a file is smaller

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"--config {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config {path}: {error}") from None
    known = {setting.name for setting in SETTINGS}
    for key in values:
        if key not in known:
            import difflib

            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; docs/settings.md lists them all"
            raise SettingsError(f"--config {path}: unknown setting {key!r}{hint}")
    return values


def read_token(token: str, token_file: Path | None) -> str | None:
    """The token from its file, else the environment; None if neither is set. Raises SettingsError for a bad file."""
    if token_file is None:
        return token or None
    return read_secret("--token-file", token_file)


def read_secret(flag: str, path: Path) -> str:
    """The one word that the file holds; raises SettingsError that names the flag and never what is in the file."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise SettingsError(f"{flag} {path}: it is no text") from None
    except OSError as error:
        raise SettingsError(f"{flag} {path}: {error.strerror}") from None
    if not text or any(character.isspace() for character in text):
        raise SettingsError(f"{flag} {path} must hold one word and nothing else")
    return text

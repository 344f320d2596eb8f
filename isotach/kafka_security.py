"""How to speak to Kafka: user, password and certificates from settings, as librdkafka names them.

To add a setting: a line in `isotach/settings.py`, a line in `NAMES`.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from isotach.settings import read_secret
from telemetry.errors import SettingsError

NAMES: Mapping[str, str] = MappingProxyType(
    {
        "kafka_security_protocol": "security.protocol",
        "kafka_sasl_mechanism": "sasl.mechanism",
        "kafka_username": "sasl.username",
        "kafka_password_file": "sasl.password",
        "kafka_ca_file": "ssl.ca.location",
    }
)
"""Each setting's name in librdkafka."""


def security(settings: Mapping[str, Any]) -> dict[str, str]:
    """librdkafka's security settings, empty for a broker without any.

    Never speaks in the clear with a password unless told to. Raises SettingsError that names the setting, never a
    value, for what does not go together or cannot be read.
    """
    user, password_file, ca_file = (settings[f"kafka_{n}"] for n in ("username", "password_file", "ca_file"))
    protocol = settings["kafka_security_protocol"] or ("sasl_ssl" if user else "ssl" if ca_file else "")
    if bool(user) != (password_file is not None):
        given, missing = ("kafka-username", "kafka-password-file")[:: 1 if user else -1]
        raise SettingsError(f"--{given} needs --{missing}: give both or neither")
    found: dict[str, str] = {}
    if protocol and protocol != "plaintext":
        found["security.protocol"] = protocol
    if user:
        if not protocol.startswith("sasl_"):
            raise SettingsError(f"--kafka-username would not be used with --kafka-security-protocol {protocol}")
        found["sasl.mechanism"] = settings["kafka_sasl_mechanism"]
        found["sasl.username"] = user
        found["sasl.password"] = read_secret("--kafka-password-file", password_file)
    if ca_file:
        if not protocol.endswith("ssl"):
            raise SettingsError(f"--kafka-ca-file would not be used with --kafka-security-protocol {protocol}")
        try:
            ca_file.read_bytes()
        except OSError as error:
            raise SettingsError(f"--kafka-ca-file {ca_file}: {error.strerror}") from None
        found["ssl.ca.location"] = str(ca_file)
    further = read_properties(settings["kafka_config"])
    for setting, name in NAMES.items():
        if name in found and name in further:
            raise SettingsError(f"{name} is both in --kafka-config and --{setting.replace('_', '-')}: give it once")
    return found | further


def read_properties(path: Path | None) -> dict[str, str]:
    """librdkafka properties, one `key=value` a line; raises SettingsError that names the line, never a value."""
    if path is None:
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--kafka-config {path}: {error}") from None
    properties: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise SettingsError(f"--kafka-config {path}, line {number}: expected key=value")
        properties[key.strip()] = value.strip()
    return properties

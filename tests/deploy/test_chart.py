"""The Helm chart: rendered by the real helm, judged by Kubernetes' schemas, its commands and settings by ours.

To test another use of it: one entry in `SITES`. What values together cannot be: one entry in `REFUSED`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from support.command_lines import VARIABLES, accepted
from support.helm import CHART, KUBERNETES, Helm, Values
from support.kubernetes import VERSIONS, complaint, pods

from collectors.nvml.kernel_log import KERNEL_LOG
from isotach import __version__
from isotach.checks.gpus import kernel_log

pytestmark = pytest.mark.xdist_group("helm")

TOKEN = {"token": {"existingSecret": "isotach-token"}}
KAFKA = {"kafka": {"bootstrap": "kafka-0.kafka:9092,kafka-1.kafka:9092"}, **TOKEN}
SITES: Mapping[str, Values] = MappingProxyType(
    {
        "kafka": KAFKA,
        "everything": {
            "nameOverride": "gpus",
            "commonLabels": {"team": "platform"},
            "images": {
                "registry": "registry.example.org/ml/",
                "agent": {"digest": "sha256:" + "0" * 64},
                "server": {"tag": "0.1.0-1"},
                "pullSecrets": [{"name": "registry"}],
            },
            "kafka": {
                "bootstrap": "kafka.example.org:9093",
                "topicPrefix": "east.",
                "telemetryPartitions": 1000,
                "replication": 3,
                "securityProtocol": "sasl_ssl",
                "sasl": {"username": "isotach", "existingSecret": "isotach-kafka", "passwordKey": "password"},
                "tls": {"existingSecret": "kafka-cluster-ca-cert"},
                "config": {"existingSecret": "isotach-librdkafka"},
            },
            **TOKEN,
            "agent": {
                "expectedGpus": 8,
                "place": ["rack=r12"],
                "kernelLog": True,
                "jobs": True,
                "spool": {"type": "hostPath", "hostPath": "/var/lib/isotach"},
                "priorityClassName": "system-node-critical",
                "maxUnavailable": 1,
                "extraArgs": ["--log-level=debug"],
                "extraEnv": [{"name": "ISOTACH_BATCH_S", "value": "5"}],
                "extraVolumes": [{"name": "driver", "hostPath": {"path": "/home/kubernetes/bin/nvidia"}}],
                "extraVolumeMounts": [{"name": "driver", "mountPath": "/usr/local/nvidia", "readOnly": True}],
                "podAnnotations": {"example.org/owner": "platform"},
            },
            "window": {"replicas": 4, "windowS": 120, "affinity": {"podAntiAffinity": {}}},
            "score": {"observeOnly": True, "tolerations": [{"operator": "Exists"}]},
            "serve": {
                "service": {"type": "LoadBalancer", "port": 80, "annotations": {"example.org/internal": "true"}},
                "persistence": {"enabled": True, "storageClassName": "fast"},
            },
            "topology": {"content": "SwitchName=leaf1 Nodes=gpu[01-04]\n"},
            "xidPolicy": {"existingConfigMap": "xid-policy"},
            "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
            "networkPolicy": {
                "enabled": True,
                "apiFrom": [{"namespaceSelector": {"matchLabels": {"name": "slurm"}}}],
                "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
            },
        },
        "kernel log by a device plugin": {
            **KAFKA,
            "agent": {
                "kernelLog": True,
                "kernelLogAccess": "device",
                "spool": {"type": ""},
                "resources": {"limits": {"example.org/kmsg": "1"}},
            },
        },
        "dcgm": {**KAFKA, "agent": {"enabled": False}, "dcgm": {"enabled": True, "service": "gpu/exporter:metrics"}},
        "without Kafka": {
            "kafka": {"enabled": False},
            **TOKEN,
            "serve": {"persistence": {"enabled": True}},
            "topology": {"existingConfigMap": "topology"},
            "xidPolicy": {"content": "79: {hard: true}\n"},
        },
        "to try it": {
            "kafka": {"enabled": False},
            "token": {"anonymous": True},
            "agent": {"collector": "simulated", "extraArgs": ["--fleet", "small"]},
            "podDisruptionBudget": {"enabled": False},
            "networkPolicy": {"enabled": True},
        },
    }
)
REFUSED: Mapping[str, tuple[Values, str]] = MappingProxyType(
    {
        "no Kafka named": (TOKEN, "kafka.bootstrap is needed"),
        "an unknown value": ({**KAFKA, "agents": {"enabled": False}}, "'agents' not allowed"),
        "an unknown value inside": ({**KAFKA, "agent": {"kernellog": True}}, "'kernellog' not allowed"),
        "a word for a number": ({**KAFKA, "window": {"replicas": "two"}}, "/window/replicas"),
        "a bootstrap without port": ({"kafka": {"bootstrap": "kafka"}, **TOKEN}, "/kafka/bootstrap"),
        "another log level": ({**KAFKA, "logLevel": "loud"}, "/logLevel"),
        "a service without namespace": ({**KAFKA, "dcgm": {"service": "exporter:9400"}}, "/dcgm/service"),
        "a secret in the clear": ({**KAFKA, "token": {"value": "hunter2"}}, "'value' not allowed"),
        "agents and DCGM": ({**KAFKA, "dcgm": {"enabled": True}}, "would report every GPU twice"),
        "a user without password": (
            {"kafka": {"bootstrap": "kafka:9092", "sasl": {"username": "isotach"}}, **TOKEN},
            "needs kafka.sasl.existingSecret",
        ),
        "no token": ({"kafka": {"bootstrap": "kafka:9092"}}, "token.existingSecret is needed"),
        "a token and none": ({**KAFKA, "token": {"existingSecret": "t", "anonymous": True}}, "contradict"),
        "two topologies": (
            {**KAFKA, "topology": {"content": "nodes: {}", "existingConfigMap": "topology"}},
            "give one of them",
        ),
        "jobs that nobody sees": ({**KAFKA, "agent": {"collector": "nvidia_smi", "jobs": True}}, "only nvml sees"),
        "a kernel's log that nobody reads": (
            {**KAFKA, "agent": {"collector": "nvidia_smi", "kernelLog": True}},
            "only nvml reads the kernel's log",
        ),
    }
)
Objects = list[dict[str, Any]]


@pytest.fixture(scope="module", params=SITES)
def site(request: pytest.FixtureRequest, helm: Helm) -> Objects:
    """What the chart installs for one use of it."""
    return helm.render(SITES[request.param])


def volumes_of(objects: Objects, component: str) -> dict[str, dict[str, Any]]:
    """A component's volumes by name, those that are claimed for each pod too."""
    found = {volume["name"]: volume for volume in pods(objects)[component]["spec"]["volumes"]}
    for workload in kinds(objects, "StatefulSet"):
        if workload["metadata"]["labels"]["app.kubernetes.io/component"] == component:
            found |= {claim["metadata"]["name"]: claim for claim in workload["spec"]["volumeClaimTemplates"]}
    return found


def containers(objects: Objects) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Component, pod and container of every container that runs `isotach`."""
    for component, template in pods(objects).items():
        for container in template["spec"]["containers"]:
            yield component, template["spec"], container


def kinds(objects: Objects, kind: str) -> Objects:
    """Objects of a kind."""
    return [found for found in objects if found["kind"] == kind]


@pytest.mark.parametrize("name", SITES)
def test_helm_finds_nothing_to_say(name: str, helm: Helm) -> None:
    """`helm lint --strict` passes."""
    done = helm.run("lint", "--strict", str(CHART), "--kube-version", KUBERNETES, values=SITES[name])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_every_object(version: str, site: Objects) -> None:
    """Every object fits Kubernetes' own schema, the oldest's and the newest's, no unknown field."""
    assert [said for found in site if (said := complaint(found, version))] == []
    names = [(found["kind"], found["metadata"]["namespace"], found["metadata"]["name"]) for found in site]
    assert len(names) == len(set(names))


def test_every_command_line_is_ours(site: Objects) -> None:
    """Each container's arguments are a command line that `isotach` accepts; each ISOTACH_ variable is a setting."""
    ran = set()
    for component, _, container in containers(site):
        accepted(container["args"])
        ran.add((component, container["args"][0]))
        variables = {entry["name"] for entry in container.get("env", ()) if entry["name"].startswith("ISOTACH_")}
        assert variables <= VARIABLES
    assert ran


def test_each_site_has_its_parts(helm: Helm) -> None:
    """With Kafka the jobs are processes of their own; without it one process is everything, and agents post to it."""
    parts = {name: {c: k["args"][0] for c, _, k in containers(helm.render(SITES[name]))} for name in SITES}
    assert parts["kafka"] == {"agent": "agent", "window": "window", "score": "score", "serve": "serve"}
    assert parts["dcgm"] == {"dcgm": "agent", "window": "window", "score": "score", "serve": "serve"}
    assert parts["without Kafka"] == {"agent": "agent", "serve": "up"}
    objects = helm.render(SITES["without Kafka"])
    told = accepted(pods(objects)["agent"]["spec"]["containers"][0]["args"])
    (service,) = kinds(objects, "Service")
    assert told["server"] == f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert told["token_file"] is not None


def test_every_file_that_is_named_is_mounted(site: Objects) -> None:
    """A file in an argument lies in a volume that has it, and a folder that is written to is not read-only."""
    for component, _, container in containers(site):
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        volumes = volumes_of(site, component)
        assert {mount["name"] for mount in mounts.values()} <= set(volumes)
        for argument in container["args"]:
            if not argument.startswith("/"):
                continue
            path = PurePosixPath(argument)
            assert str(path.parent) in mounts, f"{component}: nothing is mounted at {path.parent}"
            mount = mounts[str(path.parent)]
            volume = volumes[mount["name"]]
            assert mount.get("readOnly", False) == ("secret" in volume or "configMap" in volume)
            if "secret" in volume:
                assert [item["path"] for item in volume["secret"]["items"]] == [path.name]


def test_every_file_of_the_charts_is_there(site: Objects) -> None:
    """A ConfigMap that the chart itself names has the key that the argument asks for."""
    own = {found["metadata"]["name"]: set(found["data"]) for found in kinds(site, "ConfigMap")}
    for _, pod, container in containers(site):
        for volume in pod["volumes"]:
            if volume.get("configMap", {}).get("name") in own:
                (mount,) = [m["mountPath"] for m in container["volumeMounts"] if m["name"] == volume["name"]]
                (path,) = [PurePosixPath(a) for a in container["args"] if a.startswith(f"{mount}/")]
                assert path.name in own[volume["configMap"]["name"]]


def test_pods_have_no_right_that_they_do_not_need(site: Objects) -> None:
    """Nobody's user, read-only root, no capability, RuntimeDefault; only who reads the kernel's log has more."""
    for component, template in pods(site).items():
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == 65534
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostIPC"} & set(pod)
        assert pod.get("hostPID", False) == ("--jobs true" in " ".join(pod["containers"][0]["args"]))
        assert pod["automountServiceAccountToken"] == (component == "dcgm")
        for container in pod["containers"]:
            rights = container["securityContext"]
            assert rights["readOnlyRootFilesystem"]
            assert container["resources"]["limits"]["memory"]
            if not any(mount["mountPath"] == str(KERNEL_LOG) for mount in container["volumeMounts"]):
                assert not rights["allowPrivilegeEscalation"]
                assert rights["capabilities"] == {"drop": ["ALL"]}
                assert not {"runAsUser", "privileged"} & set(rights)
        for container in pod.get("initContainers", ()):
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE"]}


@pytest.mark.parametrize(
    ("access", "rights"),
    [
        ("privileged", {"privileged": True}),
        ("device", {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], "add": ["SYSLOG"]}}),
    ],
)
def test_the_kernels_log_can_be_read_where_asked_for(access: str, rights: Values, helm: Helm) -> None:
    """kernelLog, which the doctor names: the device, read-only, where the agent looks, and root, whose rights count."""
    pod = pods(helm.render({**KAFKA, "agent": {"kernelLog": True, "kernelLogAccess": access}}))["agent"]["spec"]
    (container,) = pod["containers"]
    context = container["securityContext"]
    assert {name: value for name, value in context.items() if name in rights} == rights
    assert context["runAsUser"] == 0
    assert {"name": "kernel-log", "mountPath": str(KERNEL_LOG), "readOnly": True} in container["volumeMounts"]
    assert {"name": "kernel-log", "hostPath": {"path": str(KERNEL_LOG), "type": "CharDevice"}} in pod["volumes"]
    without = pods(helm.render(KAFKA))["agent"]["spec"]
    assert all("hostPath" not in volume for volume in without["volumes"])


def test_jobs_are_found_where_that_is_asked_for(helm: Helm) -> None:
    """The host's process numbers, and the kubelet's log folders where the agent looks for names of pods."""
    pod = pods(helm.render({**KAFKA, "agent": {"jobs": True}}))["agent"]["spec"]
    told = accepted(pod["containers"][0]["args"])
    assert told["jobs"] is True
    assert pod["hostPID"] is True
    mount = {"name": "pod-logs", "mountPath": str(told["pod_logs"]), "readOnly": True}
    assert mount in pod["containers"][0]["volumeMounts"]
    assert accepted(pods(helm.render(KAFKA))["agent"]["spec"]["containers"][0]["args"])["jobs"] is False


def test_the_doctor_names_a_value_of_the_chart() -> None:
    """Whoever follows its remedy for a kernel's log that cannot be read finds that value."""
    (finding,) = kernel_log({}, kernel=Path("/nonexistent"), gpus_here=lambda: True)
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    (name,) = re.findall(r"Helm: agent\.(\w+)", finding.remedy)
    assert values["agent"][name] is False


def test_agents_bear_the_names_that_the_scheduler_knows(helm: Helm) -> None:
    """The node's name comes from Kubernetes, and NVML and GPUs through the runtime."""
    pod = pods(helm.render(KAFKA))["agent"]["spec"]
    environment = {entry["name"]: entry for entry in pod["containers"][0]["env"]}
    assert environment["ISOTACH_NODE"]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert environment["NVIDIA_VISIBLE_DEVICES"]["value"] == "all"
    assert pod["runtimeClassName"] == "nvidia"
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}


def test_a_simulated_fleet_is_there_once_and_needs_no_gpu(helm: Helm) -> None:
    """One pod, on any node: an agent on each would each simulate the whole fleet."""
    objects = helm.render(SITES["to try it"])
    assert not kinds(objects, "DaemonSet")
    (agent,) = [d for d in kinds(objects, "Deployment") if d["metadata"]["name"].endswith("-agent")]
    assert agent["spec"]["replicas"] == 1
    pod = agent["spec"]["template"]["spec"]
    assert not {"runtimeClassName", "nodeSelector"} & set(pod)
    assert pod["containers"][0]["image"].startswith("isotach-server:")  # the agent's has no numpy


def test_probes_ask_what_answers(site: Objects) -> None:
    """Each probe asks a port that the container opens for a path that it serves; waiting for Kafka kills nobody."""
    paths = {"http": {"/healthz", "/readyz", "/metrics"}, "metrics": {"/metrics"}}
    for component, _, container in containers(site):
        told = accepted(container["args"])
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports == ({"http": told["port"]} if component == "serve" else {"metrics": told["metrics_port"]})
        probes = {name: container[name] for name in container if name.endswith("Probe")}
        assert probes
        for probe in probes.values():
            assert probe["httpGet"]["path"] in paths[probe["httpGet"]["port"]]
        if component in ("window", "score"):  # they answer once Kafka was found, which may take a day
            assert set(probes) == {"readinessProbe"}
        if component == "serve":
            startup = probes["startupProbe"]
            assert startup["periodSeconds"] * startup["failureThreshold"] >= 1_800


def test_selectors_find_their_pods(site: Objects) -> None:
    """Services, budgets, policies and monitors each select pods that are there; a service just those of the API."""
    labels = {component: template["metadata"]["labels"] for component, template in pods(site).items()}
    for found in site:
        if found["kind"] not in ("Service", "PodDisruptionBudget", "NetworkPolicy", "PodMonitor"):
            continue
        selector = found["spec"].get("selector") or found["spec"]["podSelector"]
        wanted = selector.get("matchLabels", selector)
        expressions = selector.get("matchExpressions", ())
        chosen = {
            component
            for component, has in labels.items()
            if wanted.items() <= has.items()
            and all(has[e["key"]] in e["values"] for e in expressions if e["operator"] == "In")
        }
        assert chosen, f"{found['kind']} {found['metadata']['name']} selects nothing"
        if found["kind"] == "Service":
            assert chosen == {"serve"}
        if found["kind"] == "PodMonitor":
            assert chosen == set(labels) - {"serve"}
    for found in kinds(site, "ServiceMonitor"):
        (service,) = kinds(site, "Service")
        assert found["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert found["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]


def test_who_lists_exporters_may(helm: Helm) -> None:
    """The right to list endpoints, in the service's namespace, for the pod that lists them, and nothing else."""
    objects = helm.render(SITES["dcgm"])
    (role,), (binding,) = kinds(objects, "Role"), kinds(objects, "RoleBinding")
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "gpu"
    assert role["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list"]}
    ]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    pod = pods(objects)["dcgm"]["spec"]
    (subject,) = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == (pod["serviceAccountName"], "isotach")
    assert not kinds(objects, "ClusterRole")


def test_a_changed_topology_starts_its_readers_anew(helm: Helm) -> None:
    """Processes read the topology once: other contents give other pods."""

    def mark(text: str) -> str:
        template = pods(helm.render({**KAFKA, "topology": {"content": text}}))["score"]
        return str(template["metadata"]["annotations"])

    assert mark("a: 1") == mark("a: 1") != mark("a: 2")


def test_long_names_stay_names(helm: Helm) -> None:
    """Names of objects with the longest release's name are still at most 63 characters."""
    for found in helm.render({**KAFKA, "fullnameOverride": "a" * 80}):
        assert len(found["metadata"]["name"]) <= 63


@pytest.mark.parametrize("why", REFUSED)
def test_values_that_cannot_be_are_refused_with_the_remedy(why: str, helm: Helm) -> None:
    """An unknown, impossible or contradictory value stops the installation, and its name is said."""
    values, said = REFUSED[why]
    assert said in helm.refused(values)


def leaves(values: Any, path: str = "") -> set[str]:
    """Paths of everything that values name, maps that are free to fill left whole."""
    if not isinstance(values, dict) or not values or path.endswith((".nodeSelector", ".resources")):
        return {path}
    return set().union(*(leaves(value, f"{path}.{name}") for name, value in values.items()))


def test_values_and_their_schema_know_the_same_names() -> None:
    """What values.yaml offers is what the schema allows."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))

    def allowed(node: dict[str, Any], path: str = "") -> set[str]:
        if "$ref" in node:
            node = schema["definitions"][node["$ref"].rpartition("/")[2]]
        if "properties" not in node or path.endswith(".resources"):
            return {path}
        assert node["additionalProperties"] is False
        return set().union(*(allowed(inner, f"{path}.{name}") for name, inner in node["properties"].items()))

    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert leaves(values) == allowed(schema) - {".global"}


def test_the_chart_is_of_this_version() -> None:
    """The image that is taken if nobody says so is the one of this Isotach."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == __version__

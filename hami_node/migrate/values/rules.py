"""Which values of HAMi's chart mean what in ours: data, for the charts of 2.4 to 2.10.

A value that is HAMi's default counts as not set: `helm get values -a` prints all of them, and where
our default differs, ours is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

Put = tuple[str, Any]
"""A value of our chart, by its dotted path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What becomes of one value, or of all below it.

    Attributes:
        puts: our values; None leaves the value out, for the reason in `why`.
        why: why it is left out, or what to know about it.
        defaults: HAMi's; such a value is not mentioned.
    """

    puts: Callable[[Any], tuple[Put, ...]] | None = None
    why: str = ""
    defaults: tuple[object, ...] = ()


def same(path: str, *defaults: object, why: str = "") -> Rule:
    """The same value at this path of ours; HAMi's chart has some switches as text."""
    is_switch = any(isinstance(each, bool) for each in defaults)
    return Rule(
        puts=lambda value: ((path, _as_bool(value) if is_switch else value),),
        defaults=defaults,
        why=why,
    )


def dropped(why: str, *defaults: object) -> Rule:
    """Left out, and why."""
    return Rule(why=why, defaults=defaults)


def _as_bool(value: object) -> object:
    words = {"true": True, "false": False}
    return words.get(value.strip().lower(), value) if isinstance(value, str) else value


def _hook_path(value: object) -> tuple[Put, ...]:
    return (("global.gpuHookPath", str(value).rstrip("/").removesuffix("/vgpu")),)


def _both_classes(value: object) -> tuple[Put, ...]:
    return (("devicePlugin.runtimeClassName", value), ("podRuntimeClassName", value))


def _node_port(part: str) -> Callable[[Any], tuple[Put, ...]]:
    def puts(value: object) -> tuple[Put, ...]:
        base = f"{part}.service"
        return (
            (f"{base}.enabled", True),
            (f"{base}.type", "NodePort"),
            (f"{base}.nodePort", value),
        )

    return puts


def _replicas(value: object) -> tuple[Put, ...]:
    return (("scheduler.extender.replicas", value), ("scheduler.kubeScheduler.replicas", value))


def _env(value: object) -> tuple[Put, ...]:
    entries = value if isinstance(value, Mapping) else {}
    found = [{"name": str(name), "value": str(each)} for name, each in entries.items()]
    return (("devicePlugin.extraEnv", found),)


def _scheduler_image(value: object) -> tuple[Put, ...]:
    """`registry/repository`, as up to 2.5."""
    if isinstance(value, str):
        registry, _, repository = value.partition("/")
        value = {"registry": registry, "repository": repository}
    known = ("registry", "repository", "tag", "digest", "pullPolicy")
    given = value if isinstance(value, Mapping) else {}
    base = "scheduler.kubeScheduler.image"
    found = {key: given[key] for key in known if given.get(key)}
    if "aliyuncs.com" in str(found.get("registry", "")):
        del found["registry"]  # HAMi's default; ours is registry.k8s.io
        found.pop("repository", None)
    return tuple((f"{base}.{key}", each) for key, each in found.items() if each != "IfNotPresent")


def _core_policy(key: str) -> Callable[[Any], tuple[Put, ...]]:
    return lambda value: ((f"config.deviceConfig.nvidia.{key}", str(value)),)


def _selector(path: str) -> Rule:
    """A label selector; empty parts, which HAMi's chart has by default, are left out."""

    def puts(value: object) -> tuple[Put, ...]:
        given = value if isinstance(value, Mapping) else {}
        found = {key: each for key, each in given.items() if each}
        return ((path, found),) if found else ()

    return Rule(puts=puts, defaults=({},))


HIS_IMAGE: Final = "HAMi's image; ours is set by image.*"
_OWN_METRICS: Final = "the daemon serves metrics itself; there is no second container"
_OTHER_MAKERS: Final = "cards of other makers are not served"
_CERTIFICATE: Final = "the certificate comes from our own image, a Secret or cert-manager"
_RIGHTS: Final = "the daemon needs no such right"
_FLAGS: Final = "flags of HAMi's program; see devicePlugin.extraArgs and `hami-node run --help`"
_RESOURCES: Final[tuple[object, ...]] = ({}, None)
_WEBHOOK: Final = "scheduler.admissionWebhook"

_SAME: Final[Mapping[str, tuple[object, ...]]] = {
    "global.imagePullSecrets": ([],),
    "global.gpuHookPath": ("/usr/local",),
    "global.labels": ({},),
    "global.annotations": ({},),
    "legacyMetrics": (False,),
    "prometheus.enabled": (False,),
    "resourceName": ("nvidia.com/gpu",),
    "resourceMem": ("nvidia.com/gpumem",),
    "resourceMemPercentage": ("nvidia.com/gpumem-percentage",),
    "resourceCores": ("nvidia.com/gpucores",),
    "resourcePriority": ("nvidia.com/priority",),
    "schedulerName": ("hami-scheduler",),
    "devicePlugin.enabled": (True,),
    "devicePlugin.deviceSplitCount": (10,),
    "devicePlugin.deviceMemoryScaling": (1,),
    "devicePlugin.deviceCoreScaling": (1,),
    "devicePlugin.enableNumaTopology": (False,),
    "devicePlugin.preConfiguredDeviceMemory": (0,),
    "devicePlugin.nodeConfiguration.config": ("",),
    "devicePlugin.migStrategy": ("none",),
    "devicePlugin.passDeviceSpecsEnabled": (False,),
    "devicePlugin.nvidiaHookPath": ("",),
    "devicePlugin.gdrcopyEnabled": (False,),
    "devicePlugin.gdsEnabled": (False,),
    "devicePlugin.mofedEnabled": (False,),
    "devicePlugin.gpuOperatorToolkitReady.enabled": (False,),
    "devicePlugin.gpuOperatorToolkitReady.hostPath": ("/run/nvidia/validations",),
    "devicePlugin.service.labels": ({},),
    "devicePlugin.service.annotations": ({},),
    "devicePlugin.pluginPath": ("/var/lib/kubelet/device-plugins",),
    "devicePlugin.podAnnotations": ({},),
    "devicePlugin.tolerations": ([],),
    "devicePlugin.updateStrategy": (
        {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
    ),
    "devicePlugin.resources": _RESOURCES,
    "scheduler.nodeLabelSelector": ({},),
    "scheduler.nodeSelector": ({},),
    "scheduler.tolerations": ([],),
    "scheduler.podAnnotations": ({},),
    "scheduler.overwriteEnv": ("false", False),
    "scheduler.defaultSchedulerPolicy.nodeSchedulerPolicy": ("binpack",),
    "scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy": ("spread",),
    "scheduler.forceOverwriteDefaultScheduler": (True,),
    "scheduler.kubeScheduler.enabled": (True,),
    "scheduler.kubeScheduler.resources": _RESOURCES,
    "scheduler.extender.resources": _RESOURCES,
    f"{_WEBHOOK}.enabled": (True,),
    f"{_WEBHOOK}.whitelistNamespaces": ([],),
    f"{_WEBHOOK}.reinvocationPolicy": ("Never",),
    f"{_WEBHOOK}.failurePolicy": ("Ignore",),
    "scheduler.certManager.enabled": (False,),
    "scheduler.service.labels": ({},),
    "scheduler.service.annotations": ({},),
}
"""Values that both charts call alike, with HAMi's defaults."""

RULES: Final[Mapping[str, Rule]] = {
    **{path: same(path, *defaults) for path, defaults in _SAME.items()},
    # -- everywhere
    "global.imageRegistry": same("global.imageRegistry", "", why="it has to hold our images, too"),
    "imagePullSecrets": same("global.imagePullSecrets", [], why="so named before 2.7"),
    "global.imageTag": Rule(why="HAMi's version, not ours"),
    "version": Rule(why="HAMi's version, not ours (so named before 2.7)"),
    "global.managedNodeSelectorEnable": dropped("no code of HAMi's reads it", False),
    "global.managedNodeSelector": dropped("no code of HAMi's reads it", {"usage": "gpu"}),
    "nameOverride": dropped("our objects are never named as HAMi's", ""),
    "fullnameOverride": dropped("our objects are never named as HAMi's", ""),
    "namespaceOverride": dropped("the namespace is helm's: -n hami-system", ""),
    "podSecurityPolicy": dropped("Kubernetes has none since 1.25", {"enabled": False}),
    "platform.openshift": Rule(
        puts=lambda on: (("platform", "openshift"),) if on else (), defaults=(False,)
    ),
    "openshift": dropped("platform: openshift brings what is needed"),
    "selinux": dropped("see devicePlugin.seLinuxType"),
    "device-config.content": same("config.deviceConfig", ""),
    "mockDevicePlugin": dropped("see devicePlugin.simulatedCards"),
    # -- names
    "devices.nvidia.gpuCorePolicy": Rule(puts=_core_policy("gpuCorePolicy"), defaults=("default",)),
    "devices.nvidia.libCudaLogLevel": Rule(puts=_core_policy("libCudaLogLevel"), defaults=(1, "1")),
    "devices.awsneuron": dropped(
        "Neuron's resources are in config.deviceConfig; neuron.enabled switches it on",
        {"customresources": ["aws.amazon.com/neuron", "aws.amazon.com/neuroncore"]},
    ),
    # -- the daemon
    "devicePlugin.image": dropped(HIS_IMAGE),
    "devicePlugin.imagePullPolicy": dropped(HIS_IMAGE),
    "devicePlugin.monitorimage": dropped(HIS_IMAGE),
    "devicePlugin.monitorctrPath": dropped("follows from global.gpuHookPath"),
    "devicePlugin.monitor": dropped(_OWN_METRICS),
    "devicePlugin.vgpuMonitor": dropped(_OWN_METRICS),
    "devicePlugin.nodeConfiguration.externalConfigName": same(
        "devicePlugin.nodeConfiguration.externalConfigName",
        "",
        why="copy that ConfigMap to our namespace: it can't be mounted from another",
    ),
    "devicePlugin.runtimeClassName": Rule(
        puts=_both_classes,
        why="in our chart two values: the daemon's class, and the one for users' pods",
        defaults=("",),
    ),
    "devicePlugin.createRuntimeClass": same(
        "devicePlugin.createRuntimeClass",
        False,
        why="`helm uninstall` of HAMi removes its RuntimeClass: see the plan's last step",
    ),
    "devicePlugin.disablecorelimit": dropped(
        "HAMi does not pass it on; what acts is disableCoreLimit in config.deviceConfig.nvidia",
        "false",
        False,
    ),
    "devicePlugin.deviceListStrategy": same(
        "devicePlugin.deviceListStrategy", "envvar", why="auto finds out by itself what works"
    ),
    "devicePlugin.nvidiaDriverRoot": dropped(
        "the runtime class brings the driver; where there is none, set devicePlugin.driver=host "
        "and devicePlugin.nvidiaDriverRoot",
        "",
        "auto",
    ),
    "devicePlugin.gpuOperatorToolkitReady.securityContext": dropped(
        _RIGHTS, {"privileged": True, "runAsUser": 0}
    ),
    "devicePlugin.extraArgs": dropped(_FLAGS, ["-v=4"], ["-v=false"], []),
    "devicePlugin.extraEnvs": Rule(puts=_env, defaults=({},)),
    "devicePlugin.service.type": dropped("see devicePlugin.service.*", "NodePort", "ClusterIP"),
    "devicePlugin.service.httpPort": Rule(puts=_node_port("devicePlugin"), defaults=(31992,)),
    "devicePlugin.libPath": Rule(
        puts=_hook_path, why="one folder in one value", defaults=("/usr/local/vgpu",)
    ),
    "devicePlugin.hostPID": dropped(_RIGHTS, True),
    "devicePlugin.hostPIDBroker": dropped(_RIGHTS, {"enabled": False}),
    "devicePlugin.hostNetwork": dropped(_RIGHTS, False),
    "devicePlugin.securityContext": dropped(_RIGHTS),
    "devicePlugin.numaRefit": dropped("cards and NUMA: devicePlugin.enableNumaTopology"),
    "devicePlugin.nvidiaNodeSelector": same(
        "devicePlugin.nvidiaNodeSelector",
        {"gpu": "on"},
        why="required beside devicePlugin.nodeSelection",
    ),
    "devicePlugin.nvidianodeSelector": same(
        "devicePlugin.nvidiaNodeSelector",
        {"gpu": "on"},
        why="so spelled before 2.8; HAMi 2.8 and later takes no notice of it",
    ),
    # -- the scheduler
    "scheduler.nodeName": dropped("a scheduler of ours needs no fixed node", ""),
    "scheduler.metricsBindAddress": dropped("always :9395", ":9395"),
    "scheduler.livenessProbe": dropped("always on", False, True),
    "scheduler.leaderElect": dropped("always on", True),
    "scheduler.replicas": Rule(puts=_replicas, defaults=(1,)),
    "scheduler.podDisruptionBudget": dropped("always there", {"minAvailable": 1}),
    "scheduler.nodeLockExpire": dropped("without effect in HAMi", "5m"),
    "scheduler.nodeLockRetryTimeout": dropped("locks are taken for HAMi's plugin only", ""),
    "scheduler.kubeQPS": dropped("the client has no such limit", ""),
    "scheduler.kubeBurst": dropped("the client has no such limit", ""),
    "scheduler.kubeTimeout": dropped("each request has a limit", ""),
    "scheduler.extenderHTTPTimeout": dropped("always 30 s", 30),
    "scheduler.serviceAccountName": dropped("our accounts are named hami-node*"),
    "scheduler.networkPolicy.enabled": same("networkPolicy.enabled", False),
    "scheduler.kubeScheduler.image": Rule(puts=_scheduler_image),
    "scheduler.kubeScheduler.imageTag": same("scheduler.kubeScheduler.image.tag", "", "v1.20.0"),
    "scheduler.kubeScheduler.imagePullPolicy": same(
        "scheduler.kubeScheduler.image.pullPolicy", "IfNotPresent"
    ),
    "scheduler.kubeScheduler.extraNewArgs": dropped(
        "see scheduler.kubeScheduler.extraArgs", ["--config=/config/config.yaml", "-v=4"]
    ),
    "scheduler.kubeScheduler.extraArgs": dropped(
        "for kube-scheduler before 1.22", ["--policy-config-file=/config/config.json", "-v=4"]
    ),
    "scheduler.extender.image": dropped(HIS_IMAGE),
    "scheduler.extender.imagePullPolicy": dropped(HIS_IMAGE),
    "scheduler.extender.extraArgs": dropped(
        "flags of HAMi's program; see scheduler.extender.extraArgs", ["--debug", "-v=4"]
    ),
    f"{_WEBHOOK}.customURL": dropped("the webhook is reached by its Service"),
    f"{_WEBHOOK}.manageNamespaceSelector": dropped("always managed", True),
    f"{_WEBHOOK}.namespaceSelector": _selector(f"{_WEBHOOK}.namespaceSelector"),
    f"{_WEBHOOK}.objectSelector": _selector(f"{_WEBHOOK}.objectSelector"),
    "scheduler.mutatingWebhookConfiguration.failurePolicy": same(
        f"{_WEBHOOK}.failurePolicy", "Ignore", why="so named before 2.5"
    ),
    "scheduler.customWebhook.whitelistNamespaces": same(
        f"{_WEBHOOK}.whitelistNamespaces", [], why="so named before 2.5"
    ),
    "scheduler.customWebhook": dropped("the webhook is reached by its Service"),
    "scheduler.patch": dropped(_CERTIFICATE),
    "scheduler.service.type": dropped("see scheduler.service.*", "NodePort", "ClusterIP"),
    "scheduler.service.httpPort": dropped("the webhook is reached by its Service", 443),
    "scheduler.service.httpTargetPort": dropped("always 9443", 443, 9443),
    "scheduler.service.schedulerPort": dropped("the webhook is reached by its Service", 31998),
    "scheduler.service.monitorPort": Rule(puts=_node_port("scheduler"), defaults=(31993,)),
    "scheduler.service.monitorTargetPort": dropped("always 9395", 9395, "metrics"),
}
"""By the dotted path in HAMi's values; a rule is about everything below its path, too."""

OTHER_MAKERS: Final = (
    *("mlu", "dcu", "hcu", "hygon", "iluvatar", "metax", "enflame"),
    *("kunlun", "vastai", "biren", "mthreads", "ascend", "amd"),
)
"""How values about other makers' cards begin: at the top, below devices, and as selectors."""


def rule_for(path: str) -> Rule | None:
    """The path's rule; None where only paths below it may have one, or none is known."""
    if path in RULES:
        return RULES[path]
    first, _, rest = path.partition(".")
    name = rest if first in ("devices", "devicePlugin") else first
    is_theirs = name.startswith(OTHER_MAKERS) and "." not in name
    return dropped(_OTHER_MAKERS) if is_theirs else None

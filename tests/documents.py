"""Write what docs/ takes from the code: `python -m tests.documents`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from hami_node.config.settings import MetricNames, declarations, plain_value
from hami_node.config.sources import ignored_env, ignored_flags
from hami_node.config.values import allowed
from hami_node.engine.quota import Quota
from hami_node.engine.usage import DeviceUsage, PodGrants
from hami_node.metrics.cards import card_series, share_series
from hami_node.metrics.cluster import own_series
from hami_node.metrics.cluster_use import ClusterUse, PodUse, shares_of
from hami_node.metrics.daemon import GAUGES, KEPT, DaemonMetrics
from hami_node.metrics.hami import hami_series
from hami_node.metrics.usage import Shown, Usage, usage_series
from hami_node.model import Ask, Container, Device, Grant, Pod, Uuid
from hami_node.node.report.divided import HOLDER, PART_DOC
from hami_node.ports import ContainerUse, HostUse, UnreadUse
from hami_node.setting_types import Role
from hami_node.vendors.divided import PartState, PartView
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.neuron.names import RESOURCE_NEURON_CORE as CORE_RESOURCE
from hami_node.vendors.neuron.node.devices import NEURON_TYPES
from hami_node.vendors.neuron.placement import TRAINIUM_CORES, count_problem, family_of, wanted
from hami_node.vendors.neuron.protocol import neuron_protocol
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.registry import SETTINGS_BLOCKS, VENDORS
from tests.reliability import KINDS, shown
from tests.reliability import Shown as Mark

DOCS: Final = Path(__file__).parent.parent / "docs"


OBVIOUS: Final = ("true or false", "an absolute path", "text")
"""What a setting takes that its default and its sentence show."""


def settings_tables() -> str:
    """One table for each group of settings."""
    return "\n".join(_settings_lines())


def _settings_lines() -> Iterator[str]:
    title = ""
    for setting in declarations(SETTINGS_BLOCKS).values():
        if setting.group != title:
            title = setting.group
            yield f"\n### {title}\n"
            yield "| flag | meaning, what it takes | default | other names |"
            yield "|---|---|---|---|"
        names = setting.names
        others = [f"`--{flag}`" for flag in names.flags] + [f"`{env}`" for env in names.env]
        if names.yaml:
            others.append(f"yaml `{setting.section}.{names.yaml}`")
        if names.node:
            others.append(f"node `{names.node}`")
        default = plain_value(setting.default)
        shown = ",".join(map(str, default)) if isinstance(default, list) else str(default)
        shown = "-" if default is None or shown == "" else f"`{shown.lower()}`"
        other = setting.default_of(Role.EXTENDER)
        if other != setting.default:
            shown += f"; extender `{other}`"
        taken = allowed(setting)
        meaning = names.doc if taken in OBVIOUS else f"{names.doc} Takes {taken}."
        yield f"| `--{setting.flag}` | {meaning} | {shown} | {', '.join(others) or '-'} |"


def ignored_lists() -> str:
    """HAMi's names without effect."""
    named = ignored_flags(Role.DAEMON, SETTINGS_BLOCKS)
    flags = ", ".join(f"`{'-' if len(name) == 1 else '--'}{name}`" for name in named)
    env = ", ".join(f"`{name}`" for name in ignored_env(SETTINGS_BLOCKS))
    return f"Flags {flags}.\n\nEnvironment {env}."


LABELS: Final = {
    ("uuid", "index", "type"): "of a device",
    ("namespace", "pod", "container", "uuid", "index"): "of a container",
}


def metrics_table() -> str:
    """Every metric."""
    rows = ["| metric | labels besides `node` | meaning |", "|---|---|---|"]
    for family in every_metric():
        assert family.samples, f"every_metric has no example of {family.name}"
        own = tuple(label for label in family.samples[0].labels if label not in ("node", "le"))
        labels = LABELS.get(own) or ", ".join(f"`{label}`" for label in own) or "-"
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append(f"| `{name}` | {labels} | {family.documentation} |")
    return "\n".join(rows)


INSTANCE_SHOWN: Final = PartView(
    card=Uuid("GPU-1"), kind="1g.5gb", start=0, size=1, state=PartState.LIVE, numbers=(7, 0),
    uuid="MIG-1", pod_uid="1", container="c",
)  # fmt: skip


def every_metric() -> tuple[Metric, ...]:
    """Every family of the daemon, each with an example."""
    counters = [vendor.counter for vendor in VENDORS if vendor.counter is not None]
    metrics = DaemonMetrics("n1", counters)
    metrics.sources.append(lambda: _read(metrics))
    metrics.count_allocate("ok", 0.001)
    metrics.api_requests.count("patch", "pods", 200)
    metrics.locks_removed.count("stale")
    metrics.resizes.count("resized")
    metrics.record_rebuilt.count("damaged")
    for counter in counters:
        metrics.of_vendors[counter.name].count("P2")
    return tuple(metrics.families())


def _read(metrics: DaemonMetrics) -> Iterator[Metric]:
    """What a scrape reads of the daemon's state."""
    card = Device(
        uuid=Uuid("GPU-1"), index=0, vendor=NVIDIA, model="A100", slots=10,
        memory_mib=81920, cores=100, healthy=False, physical_memory_mib=81920,
    )  # fmt: skip
    numbered = Device(
        uuid=Uuid("n1-AWSNeuron-0"), index=0, vendor=NEURON, model="AWSNeuron", slots=2, cores=3
    )
    uses = {each.uuid: DeviceUsage(device=each) for each in (card, numbered)}
    yield from card_series("n1", ((use, use.device.model) for use in uses.values()))
    grant = Grant(uuid=card.uuid, vendor=NVIDIA, memory_mib=1, cores=1)
    pod = Pod(uid="u", namespace="ns", name="p", containers=(Container(name="c"),))
    held = PodUse(pod, "n1", PodGrants(containers=((grant,),)))
    yield from share_series("n1", shares_of(held, uses, {}))
    yield from usage_series(_used(card), Shown(node="n1", now_s=1, models={}))
    for name, (_, labels) in GAUGES.items():
        if name != "build_info":
            yield metrics.gauge(name, [(labels, 1)])
    for name, (_, labels) in KEPT.items():
        yield metrics.kept(name, [(labels, 1)])


def _used(card: Device) -> Usage:
    """A container that uses everything that can be counted, and one that can't be read."""
    use = ContainerUse(
        namespace="ns", pod="p", container="c", uuid=card.uuid, index=0, position=0,
        memory_bytes=4, context_bytes=1, module_bytes=1, data_bytes=2, core_percent=1,
        limit_bytes=8, core_limit_percent=50, last_kernel_s=1,
    )  # fmt: skip
    part = replace(use, part="MIG-1", core_percent=None, processes=1)
    lost = UnreadUse(namespace="ns", pod="p2", container="c", reason="size")
    host = HostUse(memory_bytes=8, core_percent=1, memory_controller_percent=1)
    return Usage(containers=(use, part), unread=(lost,), hosts=((card, host),))


def hami_usage_table() -> str:
    """The daemon's metrics under HAMi's names."""
    card = Device(uuid=Uuid("GPU-1"), index=0, vendor=NVIDIA, model="A100")
    how = Shown(node="n1", now_s=1, names=MetricNames.HAMI, models={})
    rows = ["| metric | labels besides `zone` | meaning |", "|---|---|---|"]
    for family in usage_series(_used(card), how):
        names = [label for label in family.samples[0].labels if label != "zone"]
        labels = ", ".join(f"`{label}`" for label in names)
        rows.append(f"| `{family.name}` | {labels} | {family.documentation} |")
    info = nvidia_protocol().part_info(INSTANCE_SHOWN)
    assert info is not None
    labels = ", ".join(f"`{label}`" for label in (*HOLDER[False][1:], *info[1]))
    rows.append(f"| `{info[0]}` | {labels} | {PART_DOC} |")
    return "\n".join(rows)


def extender_metrics_table() -> str:
    """The metrics of all nodes' cards, under our names and HAMi's."""
    rows = ["| metric | labels | meaning |", "|---|---|---|"]
    hami = partial(hami_series, resources=QUOTAS, parts=PARTED)
    for text in (of_one_card(own_series), of_one_card(hami)):
        for family in text_string_to_metric_families(text):
            labels = ", ".join(
                f"`{label}`" for label in family.samples[0].labels if label != "zone"
            )
            rows.append(f"| `{family.name}` | {labels} | {family.documentation} |")
    return "\n".join(rows)


QUOTAS: Final = ("nvidia.com/gpumem", "nvidia.com/gpucores")
INSTANCE: Final = (
    '[{"gpuUUID":"GPU-1","profile":"1g.10gb","placement":{"start":0,"size":1},'
    '"migUUID":"MIG-1","gpuInstanceID":1,"computeInstanceID":1}]'
)
PARTED: Final = {nvidia_protocol().part_metric: nvidia_protocol().part_labels}


def of_one_card(write: Callable[[ClusterUse], Iterator[str]]) -> str:
    """A page of one node with a GPU, a Neuron device and a pod."""
    gpu = Device(uuid=Uuid("GPU-1"), index=0, vendor=NVIDIA, model="A100", slots=1, memory_mib=1)
    device = Device(uuid=Uuid("n1-AWSNeuron-0"), index=0, vendor=NEURON, model="", slots=2, cores=3)
    pod = Pod(
        uid="u", namespace="ns", name="p", containers=(Container(name="c"),),
        annotations={nvidia_names.POD_MIG_ALLOCATIONS: INSTANCE},
    )  # fmt: skip
    grant = Grant(uuid=gpu.uuid, vendor=NVIDIA, memory_mib=1, cores=1)
    use = ClusterUse(
        offered={"n1": {card.uuid: DeviceUsage(device=card) for card in (gpu, device)}},
        pods=[PodUse(pod, "n1", PodGrants(containers=((grant,),)))],
        quotas={"ns": Quota(memory_limit_mib=1, core_limit=1)},
    )
    return "".join(write(use))


def layers() -> str:
    """The import contracts of pyproject.toml, highest layer first."""
    settings = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())
    lines = []
    for contract in settings["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers":
            lines += [f"**{contract['name']}**", "", "```", *contract["layers"], "```", ""]
    return "\n".join(lines).rstrip()


def neuron_types() -> str:
    """The instance types with Neuron devices."""
    rows = ["| instance type | devices | cores of a device | links |", "|---|---|---|---|"]
    for name, kind in NEURON_TYPES.items():
        cores = ", ".join(
            f"{kind.physical_cores // lnc} (LNC {lnc})" if len(kind.lncs) > 1 else f"{cores}"
            for lnc, cores in zip(kind.lncs, kind.logical_cores, strict=True)
        )
        rows.append(f"| `{name}` | {kind.devices} | {cores} | {kind.wiring} |")
    return "\n".join(rows)


def neuron_cores() -> str:
    """What a number of cores means on devices of each size."""
    ends = "|".join("---" for _ in range(1 + len(TRAINIUM_CORES)))
    sizes = " | ".join(f"devices with {size} cores" for size in TRAINIUM_CORES)
    rows = [f"| `aws.amazon.com/neuroncore` | {sizes} |", f"|{ends}|"]
    for cores in (1, 2, 4, 6, 8, 10, 12, 16, 32, 64, 128):
        ask = neuron_protocol().ask_of(Container(name="c", limits={CORE_RESOURCE: str(cores)}))
        assert ask is not None
        cells = " | ".join(_devices_of(ask, size) for size in TRAINIUM_CORES)
        rows.append(f"| {cores} | {cells} |")
    return "\n".join(rows)


def _devices_of(ask: Ask, cores_each: int) -> str:
    devices, cores = wanted(ask, cores_each)
    if devices == 1:
        return "a whole device" if cores == cores_each else f"{cores} of a device's cores"
    served = {
        kind.family: None
        for name, kind in NEURON_TYPES.items()
        if cores_each in kind.logical_cores
        and devices <= kind.devices
        and not count_problem(devices, family_of(name))
    }
    return f"{devices} devices: " + (", ".join(f"`{family}`" for family in served) or "nowhere")


def faults() -> str:
    """Every fault that a test injects."""
    rows = ["| | fault | what happens | what is lost | test |", "|---|---|---|---|---|"]
    for row in _by_number():
        cells = (row.number, row.fault, row.happens, row.lost, f"`{row.test}`")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def losses() -> str:
    """The faults that cost something."""
    rows = ["| | fault | what happens | what is lost |", "|---|---|---|---|"]
    for row in _by_number():
        if row.lost != "nothing":
            rows.append(f"| {row.number} | {row.fault} | {row.happens} | {row.lost} |")
    return "\n".join(rows)


def fault_counts() -> str:
    """How many faults of each kind are injected, and by how many tests."""
    rows = ["| | where | faults | tests |", "|---|---|---|---|"]
    marks = _by_number()
    for letter, where in KINDS.items():
        here = [row for row in marks if row.number[0] == letter]
        rows.append(f"| {letter} | {where} | {len({row.number for row in here})} | {len(here)} |")
    return "\n".join(rows)


def _by_number() -> list[Mark]:
    return sorted(shown(), key=lambda row: (row.number[0], int(row.number[1:]), row.test))


PARTS: Final = {
    "configuration.md": {"ignored": ignored_lists, "settings": settings_tables},
    "monitoring.md": {
        "metrics": metrics_table,
        "extender-metrics": extender_metrics_table,
        "hami-names": hami_usage_table,
    },
    "architecture.md": {"layers": layers},
    "reliability.md": {"counts": fault_counts, "losses": losses},
    "../tests/reliability.md": {"faults": faults},
    "neuron.md": {"neuron-types": neuron_types, "neuron-cores": neuron_cores},
}


def current(page: str) -> str:
    """The page with its generated parts as they should be now."""
    text = DOCS.joinpath(page).read_text()
    for mark, write in PARTS[page].items():
        begin, end = f"<!-- begin {mark} -->", f"<!-- end {mark} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        made = f"{begin}\n{write().strip()}\n{end}"
        text = pattern.sub(made.replace("\\", "\\\\"), text)
    return text


if __name__ == "__main__":
    for page in PARTS:
        DOCS.joinpath(page).write_text(current(page))

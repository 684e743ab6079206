"""Every set-up of a node with every strategy: what a container's response names.

The set-ups are those that were tried with NVIDIA's container toolkit; docs/driver.md says what
each of the names does there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.choices import BackendKind, DeviceListStrategy, VisibleDevicesForm
from hami_node.vendors.nvidia.node.handover.choice import (
    Extras,
    HandOver,
    Signs,
    choose,
    name_cards,
)
from hami_node.vendors.nvidia.settings import NvidiaSettings

AUTO, ENVVAR, MOUNTS, ANNOTATIONS, CRI = DeviceListStrategy
A, B = "GPU-a", "GPU-b"
ROOT = Path("/run/nvidia/driver")


def new(**facts: Any) -> Signs:
    """A node of today that shows this."""
    return Signs(kubelet="v1.34.0", engine="containerd://2.1.4", **facts)


SETUPS = {
    # what the daemon's own container shows where the runtime works as named
    "operator before 25.10, toolkit to 1.17, or mode legacy": new(
        visible_devices=("all",), has_injected_driver=True
    ),
    "toolkit 1.18 and later in mode auto or jit-cdi": new(
        visible_devices=("all", "void"), has_injected_driver=True
    ),
    "operator 25.10 and later, toolkit to 1.19": new(
        visible_devices=("all", "void"), has_injected_driver=True
    ),
    "operator 25.10 and later, toolkit 1.20": new(
        visible_devices=("void",), has_injected_driver=True
    ),
    "no runtime, driver mounted": new(visible_devices=("void",), has_root=True),
    "no runtime, driver mounted, CRI-O": Signs(
        has_root=True, kubelet="v1.31.2", engine="cri-o://1.31.0"
    ),
    "no runtime, driver mounted, kubelet 1.28": Signs(
        has_root=True, kubelet="v1.28.15", engine="containerd://2.0.0"
    ),
    "no runtime, driver mounted, containerd 1.7": Signs(
        has_root=True, kubelet="v1.30.1", engine="containerd://1.7.27"
    ),
    "no runtime, driver mounted, containerd 1.6": Signs(
        has_root=True, kubelet="v1.30.1", engine="containerd://1.6.36"
    ),
    "no runtime, driver mounted, docker": Signs(
        has_root=True, kubelet="v1.30.1", engine="docker://27.0.3"
    ),
    "no runtime, no driver": new(visible_devices=("all",)),
    "nothing is set": new(),
    "simulated cards": Signs(is_simulated=True),
}
BARE = "envvar UUID"
RUNTIME = "envvar runtime.nvidia.com/gpu=UUID"
BY_CRI = "cdi-cri hami-node.io/gpu=UUID"
BY_ANNOTATION = "cdi-annotations hami-node.io/gpu=UUID"
CHOSEN = dict(
    zip(
        SETUPS,
        [
            *(BARE, RUNTIME, RUNTIME, RUNTIME),
            *(BY_CRI, BY_CRI, BY_ANNOTATION),
            *(
                "refused: containerd://1.7.27 may have CDI switched off",
                "refused: containerd://1.6",
            ),
            "refused: docker://27.0.3 may have CDI switched off",
            f"{BARE}; no runtime has put the driver into this daemon's container",
            f"{BARE}; NVIDIA_VISIBLE_DEVICES is not set in this daemon",
            BARE,
        ],
        strict=True,
    )
)


def settings(
    *strategies: DeviceListStrategy, form: VisibleDevicesForm = VisibleDevicesForm.AUTO
) -> NvidiaSettings:
    return NvidiaSettings(
        device_list_strategy=strategies or (AUTO,),
        visible_devices_form=form,
        backend=BackendKind.NVML,
    )


def named(way: HandOver, *cards: str) -> dict[str, object]:
    """What a response names, without what is empty."""
    found = name_cards(cards or (A, B), way, Extras())
    parts = {
        "env": found.envs.get(names.ENV_VISIBLE_DEVICES),
        "mounts": [mount.container_path for mount in found.mounts],
        "annotations": dict(found.annotations),
        "cdi": list(found.cdi_devices),
    }
    return {name: part for name, part in parts.items() if part}


# -- auto ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("setup", SETUPS)
def test_auto_chooses_by_what_the_daemons_own_container_shows(setup: str) -> None:
    way = choose(settings(), SETUPS[setup])
    assert way.summary.startswith(CHOSEN[setup])
    assert bool(way.problem) is way.summary.startswith("refused: ")
    assert bool(way.strategies) is not bool(way.problem)


@pytest.mark.parametrize(
    ("setup", "remedy"),
    [
        ("no runtime, driver mounted, containerd 1.7", "set --device-list-strategy cdi-cri"),
        ("no runtime, driver mounted, containerd 1.6", "use containerd 2.0 or later"),
        ("no runtime, driver mounted, docker", "containerd: enable_cdi = true"),
    ],
)
def test_refusal_says_what_to_do(setup: str, remedy: str) -> None:
    assert remedy in choose(settings(), SETUPS[setup]).problem


@pytest.mark.parametrize("setup", ["no runtime, no driver", "nothing is set"])
def test_without_any_sign_the_plain_name_is_tried_and_the_doubt_is_told(setup: str) -> None:
    way = choose(settings(), SETUPS[setup])
    assert way.form is VisibleDevicesForm.BARE
    for remedy in ("runtimeClassName nvidia", "--driver-root", "--device-list-strategy"):
        assert remedy in way.warning


def test_driver_root_in_the_settings_counts_more_than_a_runtime_that_is_there_too() -> None:
    signs = SETUPS["operator 25.10 and later, toolkit 1.20"]
    chosen = choose(NvidiaSettings(driver_root=ROOT), signs)
    assert chosen.summary == BY_CRI


def test_specs_that_cant_be_written_refuse_with_the_reason() -> None:
    way = choose(settings(), new(has_root=True, spec_problem="no folder: mount it"))
    assert way.problem == "no folder: mount it"


# -- chosen by the settings ------------------------------------------------------------------------
ENV_RUNTIME = f"runtime.nvidia.com/gpu={A},runtime.nvidia.com/gpu={B}"
MOUNTED = "/var/run/nvidia-container-devices"
OWN = [f"hami-node.io/gpu={A}", f"hami-node.io/gpu={B}"]
NOTE = {f"cdi.k8s.io/hami-node_{A}": ",".join(OWN)}
LEGACY = SETUPS["operator before 25.10, toolkit to 1.17, or mode legacy"]
OPERATOR = SETUPS["operator 25.10 and later, toolkit 1.20"]


@pytest.mark.parametrize(
    ("strategies", "signs", "expected"),
    [
        ([ENVVAR], LEGACY, {"env": f"{A},{B}"}),
        ([ENVVAR], OPERATOR, {"env": ENV_RUNTIME}),
        (
            [MOUNTS],
            LEGACY,
            {"env": MOUNTED, "mounts": [f"{MOUNTED}/{A}", f"{MOUNTED}/{B}"]},
        ),
        (
            [MOUNTS],
            OPERATOR,
            {
                "env": MOUNTED,
                "mounts": [f"{MOUNTED}/cdi/runtime.nvidia.com/gpu/{card}" for card in (A, B)],
            },
        ),
        (
            [ENVVAR, MOUNTS],
            OPERATOR,
            {
                "env": ENV_RUNTIME,
                "mounts": [f"{MOUNTED}/cdi/runtime.nvidia.com/gpu/{card}" for card in (A, B)],
            },
        ),
        ([CRI], OPERATOR, {"env": "void", "cdi": OWN}),
        ([ANNOTATIONS], OPERATOR, {"env": "void", "annotations": NOTE}),
        ([ANNOTATIONS, CRI], OPERATOR, {"env": "void", "annotations": NOTE, "cdi": OWN}),
        ([ENVVAR, CRI], OPERATOR, {"env": "void", "cdi": OWN}),
        (
            [MOUNTS, ENVVAR, ANNOTATIONS, CRI],
            LEGACY,
            {"env": "void", "annotations": NOTE, "cdi": OWN},
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_each_strategy_names_the_cards_its_own_way(
    strategies: list[DeviceListStrategy], signs: Signs, expected: dict[str, object]
) -> None:
    way = choose(settings(*strategies), signs)
    assert not way.problem
    assert named(way) == expected


@pytest.mark.parametrize("signs", SETUPS.values(), ids=SETUPS)
@pytest.mark.parametrize("form", VisibleDevicesForm)
@pytest.mark.parametrize(
    "strategies",
    [
        (AUTO,),
        *((strategy,) for strategy in (ENVVAR, MOUNTS, ANNOTATIONS, CRI)),
        *((ENVVAR, other) for other in (MOUNTS, ANNOTATIONS, CRI)),
        (ANNOTATIONS, CRI),
        (ENVVAR, MOUNTS, ANNOTATIONS, CRI),
    ],
    ids="+".join,
)
def test_no_card_is_named_twice_and_images_own_variable_never_counts(
    strategies: tuple[DeviceListStrategy, ...], form: VisibleDevicesForm, signs: Signs
) -> None:
    way = choose(settings(*strategies, form=form), signs)
    if way.problem:
        assert not way.strategies
        return
    found = named(way, A, B, A)
    env = str(found["env"])
    assert found["env"], "an image's own `all` would give every card"
    if "cdi" in found or "annotations" in found:
        assert env == "void"
        assert "mounts" not in found
        said = found.get("cdi") or str(next(iter(found["annotations"].values()))).split(",")  # type: ignore[attr-defined]
        assert said == OWN
        return
    if env != MOUNTED:
        each = [name.rpartition("=")[2] for name in env.split(",")]
        assert each == [A, B]
        assert len({name.rpartition("=")[0] for name in env.split(",")}) == 1
    mounts = found.get("mounts", [])
    assert [Path(str(path)).name for path in mounts] in ([], [A, B])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("form", "signs", "warning"),
    [
        (VisibleDevicesForm.RUNTIME, LEGACY, "legacy mode refuses such names"),
        (VisibleDevicesForm.BARE, OPERATOR, "CDI mode may not find bare UUIDs"),
        (VisibleDevicesForm.RUNTIME, OPERATOR, ""),
        (VisibleDevicesForm.BARE, LEGACY, ""),
        (VisibleDevicesForm.AUTO, LEGACY, ""),
    ],
)
def test_form_in_the_settings_counts_and_is_warned_of_where_the_node_shows_another(
    form: VisibleDevicesForm, signs: Signs, warning: str
) -> None:
    way = choose(settings(ENVVAR, form=form), signs)
    assert not way.problem
    assert warning in way.warning
    assert bool(way.warning) is bool(warning)
    if form is not VisibleDevicesForm.AUTO:
        assert way.form is form


# -- versions --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("strategies", "kubelet", "engine", "used", "problem", "warning"),
    [
        ((CRI,), "v1.29.0", "containerd://2.0.0", (CRI,), "", ""),
        ((CRI,), "v1.28.9", "containerd://2.0.0", (), "set --device-list-strategy cdi-annot", ""),
        ((ANNOTATIONS, CRI), "v1.28.9", "containerd://2.0.0", (ANNOTATIONS,), "", ""),
        ((CRI,), "v1.30.0", "containerd://1.7.2", (CRI,), "", "unless CDI is switched on there"),
        (
            (CRI,),
            "v1.30.0",
            "containerd://1.6.9",
            (),
            "1.6.9 knows no CDI: set --device-list-strategy envvar",
            "",
        ),
        ((ANNOTATIONS,), "v1.30.0", "containerd://1.6.9", (ANNOTATIONS,), "", "ignores CDI names"),
        ((CRI,), "v1.30.0", "cri-o://1.30.0", (CRI,), "", ""),
        ((CRI,), "v1.30.0", "cri-o://1.26.0", (CRI,), "", "ignores CDI names"),
        ((CRI,), "", "", (CRI,), "", "a container engine of unknown version"),
        ((ENVVAR, CRI), "v1.28.9", "containerd://2.0.0", (ENVVAR,), "", "drops CDI names"),
    ],
)
def test_kubelet_and_engine_decide_what_becomes_of_cdi_names(
    strategies: tuple[DeviceListStrategy, ...],
    kubelet: str,
    engine: str,
    used: tuple[DeviceListStrategy, ...],
    problem: str,
    warning: str,
) -> None:
    way = choose(settings(*strategies), Signs(kubelet=kubelet, engine=engine))
    assert way.strategies == used
    assert (bool(way.problem), bool(way.warning)) == (bool(problem), bool(warning))
    assert problem in way.problem
    assert warning in way.warning


# -- extras ----------------------------------------------------------------------------------------
def test_switches_are_asked_of_nvidias_runtime_only() -> None:
    extras = Extras(switches=(names.ENV_GDS, names.ENV_GDRCOPY))
    by_runtime = name_cards([A], choose(settings(ENVVAR), OPERATOR), extras)
    assert (by_runtime.envs["NVIDIA_GDS"], by_runtime.envs["NVIDIA_GDRCOPY"]) == ("enabled",) * 2
    by_cdi = name_cards([A], choose(settings(CRI), OPERATOR), extras)
    assert dict(by_cdi.envs) == {names.ENV_VISIBLE_DEVICES: "void"}


def test_annotation_has_the_prefix_of_the_settings() -> None:
    extras = Extras(annotation_prefix="nvidia.cdi.k8s.io/")
    found = name_cards([A], choose(settings(ANNOTATIONS), OPERATOR), extras)
    assert found.annotations == ((f"nvidia.cdi.k8s.io/hami-node_{A}", OWN[0]),)

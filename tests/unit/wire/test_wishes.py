"""Wishes in pod annotations, the cordon list of a node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.model import PodWishes, UuidWish, Vendor
from hami_node.wire import names
from hami_node.wire.wishes import decode_cordon, decode_wishes


@pytest.mark.parametrize(
    ("annotations", "wishes"),
    [
        ({}, PodWishes()),
        ({names.USE_GPU_TYPE: "V100, h100 ,"}, PodWishes(use_types=("v100", "h100"))),
        ({names.NOUSE_GPU_TYPE: "A100"}, PodWishes(nouse_types=("a100",))),
        ({names.USE_GPU_UUID: " , "}, PodWishes()),
        ({names.USE_GPU_UUID: "GPU-1 ,"}, PodWishes(nvidia=UuidWish(use=frozenset({"GPU-1"})))),
        (
            {names.NOUSE_NEURON_UUID: "n-0"},
            PodWishes(neuron=UuidWish(nouse=frozenset({"n-0"}))),
        ),
        ({names.VGPU_MODE: "mig,mps"}, PodWishes(modes=frozenset({"mig", "mps"}))),
        ({names.POD_GPU_POLICY: "", names.POD_NODE_POLICY: "spread"},
         PodWishes(gpu_policy="", node_policy="spread")),
        ({names.POD_SCORING_WEIGHTS: "x"}, PodWishes(scoring_weights="x")),
    ],
)  # fmt: skip
def test_decode_wishes(annotations: dict[str, str], wishes: PodWishes) -> None:
    assert decode_wishes(annotations) == wishes


@pytest.mark.parametrize("word", ["1", "t", "T", "TRUE", "true", "True"])
def test_numa_bind_is_on_for_true_words(word: str) -> None:
    assert decode_wishes({names.NUMA_BIND: word}).is_numa_bound


@pytest.mark.parametrize("word", ["", "yes", "false", "tRUE", " true", "0"])
def test_numa_bind_is_off_for_anything_else(word: str) -> None:
    assert not decode_wishes({names.NUMA_BIND: word}).is_numa_bound


@pytest.mark.parametrize(
    ("use", "nouse", "admitted"),
    [
        (None, frozenset(), True),
        (frozenset({"a"}), frozenset(), True),
        (frozenset({"b"}), frozenset(), False),
        (frozenset({"a"}), frozenset({"a"}), False),
        (None, frozenset({"a"}), False),
    ],
)
def test_uuid_wish_admits(
    use: frozenset[str] | None, nouse: frozenset[str], admitted: bool
) -> None:
    assert UuidWish(use=use, nouse=nouse).admits("a") is admitted


def test_uuid_wishes_are_per_vendor() -> None:
    wishes = decode_wishes({names.USE_GPU_UUID: "g", names.USE_NEURON_UUID: "n"})
    assert wishes.uuids(Vendor.NVIDIA).use == frozenset({"g"})
    assert wishes.uuids(Vendor.AWS_NEURON).use == frozenset({"n"})


def test_decode_cordon() -> None:
    assert decode_cordon({names.NODE_CORDON: " GPU-0 ,,GPU-1,"}) == {"GPU-0", "GPU-1"}
    assert decode_cordon({}) == frozenset()


@given(st.dictionaries(st.sampled_from([names.USE_GPU_TYPE, names.VGPU_MODE]), st.text()))
def test_decode_wishes_never_raises(annotations: dict[str, str]) -> None:
    assert isinstance(decode_wishes(annotations), PodWishes)

"""Steps of the demo on a node whose devices are served by their vendor's own plugin."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from hami_node.demo import pods
from hami_node.demo.stage import EXTENDER
from hami_node.demo.tour import Seen, Step, Tour
from hami_node.model import Container
from hami_node.vendors.demo import DemoPod, ForeignDevices, check


def steps_on(part: ForeignDevices) -> Iterable[Step]:
    """Steps: the node is reported, a pod is placed, an impossible pod is detected."""
    report_title, place_title, object_title = part.titles
    yield Step(title=report_title, act=partial(_report, part), programs=(part.node,))
    yield Step(title=place_title, act=partial(_place, part), programs=(EXTENDER, part.node))
    yield Step(title=object_title, act=partial(_object, part), programs=(part.node,))


def _report(part: ForeignDevices, tour: Tour) -> Seen:
    """The node is reported; the vendor's own plugin keeps serving kubelet."""
    stage, node = tour.stage, tour.stage.nodes[part.node]

    def announced() -> dict[str, str] | None:
        found = dict(stage.read_node(node).annotations)
        return found if all(key in found for key in part.announced) else None

    annotations = stage.until(part.node, "the node object names them", announced)
    report = part.reported(annotations)
    registered = f"it registered with kubelet, which is the task of {part.plugin}"
    check(not node.kubelet.registrations, registered)
    idle = f"nothing registered with kubelet: {part.plugin} serves the devices"
    return Seen(lines=(report, idle))


def _place(part: ForeignDevices, tour: Tour) -> Seen:
    """A pod is created unscheduled and gets devices."""
    stage, job = tour.stage, part.job
    pods.create(stage, pods.body_of(job.name, (_container(job),), {}))
    node = pods.place(stage, job.name)
    check(node == part.node, f"it was bound to {node}")
    node_annotations = stage.read_node(stage.nodes[part.node]).annotations
    given = part.placed(pods.read(stage, job.name).annotations, node_annotations)
    wanted = ", ".join(f"{resource}: {amount}" for resource, amount in job.limits.items())
    return Seen(lines=(f"pod {job.name} requests {wanted}; it is bound to {node} with {given}",))


def _object(part: ForeignDevices, tour: Tour) -> Seen:
    """Devices that no job could use are reported to the pod's owner."""
    stage, job = tour.stage, part.job.name
    wrong = part.impossible(pods.read(stage, job).annotations)
    pods.write_bound(stage, wrong.name, part.node, _container(wrong), wrong.annotations)
    event = stage.until(
        part.node,
        f"an Event names the error of pod {wrong.name}",
        lambda: pods.event_of(stage, wrong.name, part.complaint),
    )
    complaint = pods.event_of(stage, job, part.complaint)
    check(complaint is None, f"the daemon objects to the extender's choice: {complaint}")
    return Seen(
        lines=(
            f"pod {wrong.name} was given devices {wrong.given}, bypassing webhook and extender; "
            f"its Event (pod {job} has none):",
        ),
        quote=event,
    )


def _container(pod: DemoPod) -> Container:
    return Container(name="main", limits=pod.limits)

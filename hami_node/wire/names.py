"""The names of the protocol that all vendors share, with writer and reader.

"daemon", "extender" and "webhook" are ours; "scheduler" and "plugin" are HAMi's. Each comment is
`writer -> reader: what; source`, sources being HAMi 2.10 files. The names that concern only
one vendor are in its folder, in the same form; docs/protocol.md is made from all of them.
"""

from __future__ import annotations

from typing import Final

# -- Node annotations ------------------------------------------------------------------------------
# scheduler, extender -> daemon, who removes it: see "Node lock"; nodelock/nodelock.go
NODE_LOCK: Final = "hami.io/mutex.lock"
# people -> scheduler, extender: UUIDs that take no new pod, comma-separated; nvidia/device.go
NODE_CORDON: Final = "hami.io/device-cordon"
# daemon -> extender: `pod-resources` where Allocate needs no lock to know its pod; ours
NODE_IDENTITY: Final = "hami-node.io/allocate-identity"
# people -> daemon, who removes it: UUIDs, or `all`, of cards that need no reset any more; ours
NODE_CLEAR_ERRORS: Final = "hami-node.io/clear-card-errors"
# extender -> daemon: `hami-node` where our extender reads the node's cards, see its values; ours
NODE_READ_BY: Final = "hami-node.io/read-by"
# extender -> extender: since when the leader leads, on its own pod and that pod's node; ours
NODE_LEADING_SINCE: Final = "hami-node.io/leading-since"
# daemon -> people: how containers get their cards here, or why they can't; ours
NODE_HAND_OVER: Final = "hami-node.io/hand-over"
# daemon -> people: the cards of this node are simulated; ours
NODE_SIMULATED: Final = "hami-node.io/simulated"
# daemon -> extender: what resized containers hold, see "Resizing"; ours
NODE_RESIZED: Final = "hami-node.io/resized"
# daemon -> people: the version of the limiter that new containers get; ours
NODE_LIMITER: Final = "hami-node.io/limiter"
# daemon -> people: why cards are unhealthy or closed, by UUID, as JSON; ours
NODE_CLOSED_CARDS: Final = "hami-node.io/closed-cards"

# -- Values of node annotations --------------------------------------------------------------------
# daemon -> extender: value of the identity annotation; ours
IDENTITY_POD_RESOURCES: Final = "pod-resources"
# daemon -> people: begins the hand-over annotation where no container can be given a card; ours
HAND_OVER_REFUSED: Final = "refused: "
# extender -> daemon: value of the annotation that says who reads the node's cards; ours
READ_BY_EXTENDER: Final = "hami-node"
# extender -> daemon: begins it where init containers count for life; its question follows; ours
READ_BY_COUNTING_INITS: Final = "hami-node counts-inits "
# people -> daemon: all cards, in place of their UUIDs; ours
CLEAR_ALL: Final = "all"
# daemon, plugin -> scheduler, extender: begins a handshake of the node; rm/register.go of 2.4-2.7
HANDSHAKE_REPORTED: Final = "Reported"
# scheduler, extender -> daemon, plugin: begins a question to the node; device/devices.go
HANDSHAKE_REQUESTING: Final = "Requesting_"
# scheduler -> daemon, plugin: begins the note that the node was given up; up to 2.9
HANDSHAKE_DELETED: Final = "Deleted_"

# -- Pod annotations of a reservation --------------------------------------------------------------
# scheduler, extender -> daemon, plugin: the chosen node; a label too; util/types.go
POD_NODE: Final = "hami.io/vgpu-node"
# scheduler, extender -> plugin: when it was chosen, Unix seconds; util/types.go
POD_TIME: Final = "hami.io/vgpu-time"
# scheduler, extender, then daemon, plugin -> everybody: how far Allocate is; util/types.go
POD_BIND_PHASE: Final = "hami.io/bind-phase"
# scheduler, extender -> plugin: when the pod was bound, Unix seconds; util/types.go
POD_BIND_TIME: Final = "hami.io/bind-time"
# daemon -> people: the version of the limiter of each container, as JSON; ours
POD_LIMITERS: Final = "hami-node.io/limiters"
# extender -> extender: who is evicted for this pod, see "Preemption"; ours
POD_VICTIMS: Final = "hami-node.io/victims"
# scheduler, extender -> daemon, plugin: bound, waits for Allocate; util/types.go
PHASE_ALLOCATING: Final = "allocating"
# daemon, plugin -> scheduler: every container is served; util/types.go
PHASE_SUCCESS: Final = "success"
# daemon, plugin -> scheduler: Allocate was refused; util/types.go
PHASE_FAILED: Final = "failed"

# -- Pod annotations of a user ---------------------------------------------------------------------
# user -> scheduler, extender: binpack or spread over nodes; util/types.go
POD_NODE_POLICY: Final = "hami.io/node-scheduler-policy"
# user -> scheduler, extender: binpack, spread, topology-aware, mutex or a chain; util/types.go
POD_GPU_POLICY: Final = "hami.io/gpu-scheduler-policy"
# user -> scheduler, extender: `slot=1,core=1,memory=1`, 2.10; util/device_scoring_weights.go
POD_SCORING_WEIGHTS: Final = "hami.io/device-scoring-weights"

# user -> webhook: names a group, which was placed as a whole once; has no effect; ours
POD_GROUP: Final = "hami-node.io/pod-group"

# -- Pod annotations of a resize ------------------------------------------------------------------
# user -> extender: new amounts by container, see "Resizing"; ours
POD_RESIZE: Final = "hami-node.io/resize"
# extender -> daemon: the request that has room, and its new grants; ours
POD_RESIZE_APPROVED: Final = "hami-node.io/resize-approved"
# extender, daemon -> people: how far the request is, and why it was refused; ours
POD_RESIZE_STATE: Final = "hami-node.io/resize-state"

# -- Labels ----------------------------------------------------------------------------------------
# extender -> kube-scheduler: since when a node is no longer backed off, Unix milliseconds; ours
OPENED_NODE: Final = "hami-node.io/open-since"
# people -> API server: value "ignore" on pods and namespaces keeps the webhook out; HAMi's chart
WEBHOOK_OPT_OUT: Final = "hami.io/webhook"

"""Every annotation, label, resource and environment name of the protocol, with writer and reader.

"daemon", "extender" and "webhook" are ours; "scheduler" and "plugin" are HAMi's; "limiter" is
HAMi-core's library inside the container; "aws" is AWS's own Neuron device plugin. Each comment is
`writer -> reader: what; source`, sources being HAMi 2.10 files. docs/protocol.md is made of it.
"""

from __future__ import annotations

from typing import Final

# -- Node annotations ------------------------------------------------------------------------------
# daemon, plugin -> scheduler, extender: the cards, see "Register"; nvidia/device.go
NODE_REGISTER: Final = "hami.io/node-nvidia-register"
# daemon <-> scheduler, extender: who spoke last, see "Handshake"; device/devices.go
NODE_HANDSHAKE: Final = "hami.io/node-handshake"
# daemon, plugin -> scheduler, extender: links between cards, see "Pair scores"; nvidia/device.go
NODE_PAIR_SCORES: Final = "hami.io/node-nvidia-score"
# scheduler, extender -> daemon, who removes it: see "Node lock"; nodelock/nodelock.go
NODE_LOCK: Final = "hami.io/mutex.lock"
# people -> scheduler, extender: UUIDs that take no new pod, comma-separated; nvidia/device.go
NODE_CORDON: Final = "hami.io/device-cordon"
# daemon -> extender: the Neuron devices as JSON, see "Register"; ours, in HAMi's style
NODE_NEURON_REGISTER: Final = "hami.io/node-register-AWSNeuron"
# daemon -> extender: `Reported_<RFC 3339>`, stale after 90 s; ours, in HAMi's style
NODE_NEURON_HANDSHAKE: Final = "hami.io/node-handshake-AWSNeuron"
# daemon -> extender: instance type, links and driver of the Neuron devices as JSON; ours
NODE_NEURON_TOPOLOGY: Final = "hami-node.io/neuron-topology"
# daemon -> extender: `pod-resources` where Allocate needs no lock to know its pod; ours
NODE_IDENTITY: Final = "hami-node.io/allocate-identity"
# daemon -> people: the cards of this node are simulated; ours
NODE_SIMULATED: Final = "hami-node.io/simulated"

# -- Values of node annotations --------------------------------------------------------------------
# daemon -> extender: value of the identity annotation; ours
IDENTITY_POD_RESOURCES: Final = "pod-resources"
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
# scheduler, extender -> daemon, plugin, who empty it: see "Grants"; nvidia/device.go
POD_TO_ALLOCATE: Final = "hami.io/vgpu-devices-to-allocate"
# scheduler, extender -> everybody: the grants as reserved, see "Grants"; nvidia/device.go
POD_ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
# scheduler, extender -> daemon, plugin: see "MIG reservations", 2.10; nvidia/mig_allocations.go
POD_MIG_ALLOCATIONS: Final = "hami.io/vgpu-mig-allocations"
# scheduler, extender, then daemon, plugin -> everybody: how far Allocate is; util/types.go
POD_BIND_PHASE: Final = "hami.io/bind-phase"
# scheduler, extender -> plugin: when the pod was bound, Unix seconds; util/types.go
POD_BIND_TIME: Final = "hami.io/bind-time"
# scheduler, extender -> everybody: Neuron grants, cores as a bit mask; awsneuron/device.go
POD_NEURON_ALLOCATED: Final = "hami.io/aws-neuron-devices-allocated"
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
# user -> scheduler, extender, daemon: words of which a card's type holds one; nvidia/device.go
USE_GPU_TYPE: Final = "nvidia.com/use-gputype"
# user -> scheduler, extender, daemon: words of which it holds none; nvidia/device.go
NOUSE_GPU_TYPE: Final = "nvidia.com/nouse-gputype"
# user -> scheduler, extender, daemon: only these cards; nvidia/device.go
USE_GPU_UUID: Final = "nvidia.com/use-gpuuuid"
# user -> scheduler, extender, daemon: none of these cards; nvidia/device.go
NOUSE_GPU_UUID: Final = "nvidia.com/nouse-gpuuuid"
# user -> scheduler, extender: all cards on one NUMA node; nvidia/device.go
NUMA_BIND: Final = "nvidia.com/numa-bind"
# user -> scheduler, extender, daemon: hami-core, mig or mps, comma-separated; nvidia/device.go
VGPU_MODE: Final = "nvidia.com/vgpu-mode"
# user -> scheduler, extender: only these Neuron devices; awsneuron/device.go
USE_NEURON_UUID: Final = "aws.amazon.com/use-neuron-uuid"
# user -> scheduler, extender: none of these Neuron devices; awsneuron/device.go
NOUSE_NEURON_UUID: Final = "aws.amazon.com/nouse-neuron-uuid"

# -- Pod annotations for AWS's Neuron plugin -------------------------------------------------------
# scheduler, extender -> aws: numbers of devices, or of cores, `0,1,2`; awsneuron/device.go
NEURON_IDS: Final = "AWS_NEURON_IDS"
# scheduler, extender -> aws: the core resource's name when the ids are cores; awsneuron/device.go
NEURON_RESOURCE_TYPE: Final = "NEURON_RESOURCE_TYPE"
# scheduler, extender -> aws: Unix nanoseconds; awsneuron/device.go
NEURON_ALLOC_TIME: Final = "NEURON_ALLOC_TIME"
# scheduler, extender, then aws -> daemon: "false", "true" once served; awsneuron/device.go
NEURON_IS_ALLOCATED: Final = "NEURON_ALLOCATED"
# scheduler, extender -> aws: the chosen node; awsneuron/device.go
NEURON_PREDICATE_NODE: Final = "aws.amazon.com/predicate-node"

# -- Extended resources (device-config.yaml may rename NVIDIA's) -----------------------------------
# user -> everybody: number of cards; nvidia/device.go
RESOURCE_GPU: Final = "nvidia.com/gpu"
# user -> webhook, scheduler, extender, daemon: MiB on each card; nvidia/device.go
RESOURCE_GPU_MEMORY: Final = "nvidia.com/gpumem"
# user -> webhook, scheduler, extender, daemon: share of each card's memory; nvidia/device.go
RESOURCE_GPU_MEMORY_PERCENT: Final = "nvidia.com/gpumem-percentage"
# user -> webhook, scheduler, extender, daemon: percent of each card; nvidia/device.go
RESOURCE_GPU_CORES: Final = "nvidia.com/gpucores"
# user -> webhook: 0 is high, 1 is low; nvidia/device.go
RESOURCE_GPU_PRIORITY: Final = "nvidia.com/priority"
# user -> everybody: number of whole Neuron devices; awsneuron/device.go
RESOURCE_NEURON: Final = "aws.amazon.com/neuron"
# user -> everybody: number of Neuron cores; awsneuron/device.go
RESOURCE_NEURON_CORE: Final = "aws.amazon.com/neuroncore"

# -- Labels ----------------------------------------------------------------------------------------
# cloud -> daemon, scheduler, extender: on nodes, the EC2 instance type; Kubernetes
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
# people -> API server: value "ignore" on pods and namespaces keeps the webhook out; HAMi's chart
WEBHOOK_OPT_OUT: Final = "hami.io/webhook"

# -- Environment of a container --------------------------------------------------------------------
# daemon -> limiter: `_<i>` is appended for the i-th card, `<MiB>m`; HAMi-core
ENV_MEMORY_LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT"
# daemon -> limiter: percent, one value for all cards; HAMi-core
ENV_CORE_LIMIT: Final = "CUDA_DEVICE_SM_LIMIT"
# daemon -> limiter: path of the shared region in the container; HAMi-core
ENV_CACHE: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
# daemon -> limiter: "true" when memory is scaled up; plugin/server.go
ENV_OVERSUBSCRIBE: Final = "CUDA_OVERSUBSCRIBE"
# daemon -> NVIDIA's container runtime: UUIDs in card order; plugin/server.go
ENV_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
# daemon -> limiter: 0 to 4; HAMi-core
ENV_LOG_LEVEL: Final = "LIBCUDA_LOG_LEVEL"
# webhook, daemon -> limiter: default, force or disable; HAMi-core
ENV_CORE_POLICY: Final = "GPU_CORE_UTILIZATION_POLICY"
# webhook -> limiter: 0 is high, 1 is low; HAMi-core
ENV_TASK_PRIORITY: Final = "CUDA_TASK_PRIORITY"
# user -> daemon, plugin: a true value asks for no limiter; plugin/server.go
ENV_DISABLE_CONTROL: Final = "CUDA_DISABLE_CONTROL"
# user -> dynamic linker: libraries loaded before the limiter, refused by the webhook; ld.so(8)
ENV_PRELOAD: Final = "LD_PRELOAD"

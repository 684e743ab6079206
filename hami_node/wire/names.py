"""Every annotation, label, resource and environment name of the protocol, with writer and reader.

"daemon" and "extender" are ours; "scheduler" and "plugin" are HAMi's. Sources name HAMi 2.10 files.
"""

from __future__ import annotations

from typing import Final

# -- node annotations ------------------------------------------------------------------------------
NODE_REGISTER: Final = "hami.io/node-nvidia-register"  # daemon -> scheduler; nvidia/device.go
NODE_HANDSHAKE: Final = "hami.io/node-handshake"  # daemon <-> scheduler; device/devices.go
NODE_PAIR_SCORES: Final = "hami.io/node-nvidia-score"  # daemon -> scheduler; nvidia/device.go
NODE_LOCK: Final = "hami.io/mutex.lock"  # scheduler -> daemon, who removes it; nodelock.go
NODE_CORDON: Final = "hami.io/device-cordon"  # people -> extender; nvidia/device.go
NODE_NEURON_REGISTER: Final = "hami.io/node-register-AWSNeuron"  # daemon -> extender
NODE_NEURON_HANDSHAKE: Final = "hami.io/node-handshake-AWSNeuron"  # daemon -> extender
NODE_NEURON_TOPOLOGY: Final = "hami-node.io/neuron-topology"  # daemon -> extender
NODE_IDENTITY: Final = "hami-node.io/allocate-identity"  # daemon -> extender: no lock needed
NODE_SIMULATED: Final = "hami-node.io/simulated"  # daemon -> people: cards are not real
IDENTITY_POD_RESOURCES: Final = "pod-resources"  # value of NODE_IDENTITY

HANDSHAKE_REPORTED: Final = "Reported"  # daemon: `Reported <time>`
HANDSHAKE_REQUESTING: Final = "Requesting_"  # scheduler: `Requesting_<time>`
HANDSHAKE_DELETED: Final = "Deleted_"  # scheduler: `Deleted_<time>`

# -- pod annotations -------------------------------------------------------------------------------
POD_NODE: Final = "hami.io/vgpu-node"  # scheduler -> plugin; also a label; util/types.go
POD_TIME: Final = "hami.io/vgpu-time"  # scheduler -> plugin, unix seconds
POD_TO_ALLOCATE: Final = "hami.io/vgpu-devices-to-allocate"  # scheduler -> daemon, who empties it
POD_ALLOCATED: Final = "hami.io/vgpu-devices-allocated"  # scheduler -> everybody
POD_MIG_ALLOCATIONS: Final = "hami.io/vgpu-mig-allocations"  # scheduler -> plugin; 2.10
POD_BIND_PHASE: Final = "hami.io/bind-phase"  # scheduler, then daemon
POD_BIND_TIME: Final = "hami.io/bind-time"  # scheduler, unix seconds
POD_NODE_POLICY: Final = "hami.io/node-scheduler-policy"  # user -> scheduler
POD_GPU_POLICY: Final = "hami.io/gpu-scheduler-policy"  # user -> scheduler
POD_SCORING_WEIGHTS: Final = "hami.io/device-scoring-weights"  # user -> scheduler; 2.10
POD_NEURON_ALLOCATED: Final = "hami.io/aws-neuron-devices-allocated"  # scheduler; awsneuron
PHASE_ALLOCATING: Final = "allocating"
PHASE_SUCCESS: Final = "success"
PHASE_FAILED: Final = "failed"

USE_GPU_TYPE: Final = "nvidia.com/use-gputype"  # user -> scheduler, daemon
NOUSE_GPU_TYPE: Final = "nvidia.com/nouse-gputype"
USE_GPU_UUID: Final = "nvidia.com/use-gpuuuid"
NOUSE_GPU_UUID: Final = "nvidia.com/nouse-gpuuuid"
NUMA_BIND: Final = "nvidia.com/numa-bind"
VGPU_MODE: Final = "nvidia.com/vgpu-mode"
USE_NEURON_UUID: Final = "aws.amazon.com/use-neuron-uuid"
NOUSE_NEURON_UUID: Final = "aws.amazon.com/nouse-neuron-uuid"

# -- AWS Neuron: written by a scheduler for AWS's own device plugin -------------------------------
NEURON_IDS: Final = "AWS_NEURON_IDS"
NEURON_RESOURCE_TYPE: Final = "NEURON_RESOURCE_TYPE"
NEURON_ALLOC_TIME: Final = "NEURON_ALLOC_TIME"
NEURON_IS_ALLOCATED: Final = "NEURON_ALLOCATED"
NEURON_PREDICATE_NODE: Final = "aws.amazon.com/predicate-node"

# -- extended resources (defaults; device-config.yaml may rename NVIDIA's) ------------------------
RESOURCE_GPU: Final = "nvidia.com/gpu"
RESOURCE_GPU_MEMORY: Final = "nvidia.com/gpumem"
RESOURCE_GPU_MEMORY_PERCENT: Final = "nvidia.com/gpumem-percentage"
RESOURCE_GPU_CORES: Final = "nvidia.com/gpucores"
RESOURCE_GPU_PRIORITY: Final = "nvidia.com/priority"
RESOURCE_NEURON: Final = "aws.amazon.com/neuron"
RESOURCE_NEURON_CORE: Final = "aws.amazon.com/neuroncore"

# -- labels ----------------------------------------------------------------------------------------
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"  # cloud -> daemon, extender
WEBHOOK_OPT_OUT: Final = "hami.io/webhook"  # value "ignore": people -> API server

# -- environment of a container --------------------------------------------------------------------
ENV_MEMORY_LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT"  # `_<i>` appended, `<MiB>m`; daemon -> limiter
ENV_CORE_LIMIT: Final = "CUDA_DEVICE_SM_LIMIT"  # percent; daemon -> limiter
ENV_CACHE: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"  # path; daemon -> limiter
ENV_OVERSUBSCRIBE: Final = "CUDA_OVERSUBSCRIBE"
ENV_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"  # daemon -> NVIDIA's container runtime
ENV_LOG_LEVEL: Final = "LIBCUDA_LOG_LEVEL"
ENV_CORE_POLICY: Final = "GPU_CORE_UTILIZATION_POLICY"
ENV_TASK_PRIORITY: Final = "CUDA_TASK_PRIORITY"  # webhook -> limiter
ENV_DISABLE_CONTROL: Final = "CUDA_DISABLE_CONTROL"  # user -> plugin: no limiter

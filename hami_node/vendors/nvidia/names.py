"""The names of the protocol that are about NVIDIA cards, with writer and reader.

The form of the comments: `hami_node.wire.names`. "limiter" is HAMi-core's library.
"""

from __future__ import annotations

from typing import Final

# -- Node annotations ------------------------------------------------------------------------------
# daemon, plugin -> scheduler, extender: the cards, see "Register"; nvidia/device.go
NODE_REGISTER: Final = "hami.io/node-nvidia-register"
# daemon <-> scheduler, extender: who wrote last, see "Handshake"; device/devices.go
NODE_HANDSHAKE: Final = "hami.io/node-handshake"
# daemon, plugin -> scheduler, extender: links between cards, see "Pair scores"; nvidia/device.go
NODE_PAIR_SCORES: Final = "hami.io/node-nvidia-score"
# daemon -> people: the cards of a node that serves fixed shares, see "Register"; ours
NODE_STANDALONE: Final = "hami-node.io/standalone"
# daemon -> nobody: what versions before this one showed of cards in MIG mode is removed; ours
NODE_MIG: Final = "hami-node.io/mig"

# -- Node labels -----------------------------------------------------------------------------------
# GPU Operator -> daemon, inspect: "true" where its DRA driver gives out the cards; gpu-operator
LABEL_DRA_DRIVER: Final = "nvidia.com/gpu.deploy.dra-driver"

# -- Pod annotations of a reservation --------------------------------------------------------------
# scheduler, extender -> daemon, plugin, who empty it: see "Grants"; nvidia/device.go
POD_TO_ALLOCATE: Final = "hami.io/vgpu-devices-to-allocate"
# scheduler, extender -> everybody: the grants as reserved, see "Grants"; nvidia/device.go
POD_ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
# scheduler, extender -> daemon, plugin: see "MIG reservations", 2.10; nvidia/mig_allocations.go
POD_MIG_ALLOCATIONS: Final = "hami.io/vgpu-mig-allocations"

# -- Pod annotations of a user ---------------------------------------------------------------------
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

# -- Extended resources (the settings may rename them) ---------------------------------------------
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
# user -> kubelet, daemon: beginning of the names of MIG instances others make; k8s-device-plugin
RESOURCE_MIG: Final = "nvidia.com/mig-"

# -- Environment of a container --------------------------------------------------------------------
# daemon -> limiter: `_<i>` is appended for the i-th card, `<MiB>m`; HAMi-core
ENV_MEMORY_LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT"
# daemon -> limiter: percent, one value for all cards; HAMi-core
ENV_CORE_LIMIT: Final = "CUDA_DEVICE_SM_LIMIT"
# daemon -> limiter: path of the shared region in the container; HAMi-core
ENV_CACHE: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
# daemon -> limiter: its own library, where the hook path is not its default; HAMi-core
ENV_REDIRECT: Final = "CUDA_REDIRECT"
# daemon -> limiter: "true" when memory is scaled up; plugin/server.go
ENV_OVERSUBSCRIBE: Final = "CUDA_OVERSUBSCRIBE"
# daemon, webhook -> NVIDIA's container runtime: see docs/driver.md; plugin/server.go
ENV_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
# daemon -> NVIDIA's container runtime: "enabled" for GPUDirect Storage's nodes; plugin/server.go
ENV_GDS: Final = "NVIDIA_GDS"
# daemon -> NVIDIA's container runtime: "enabled" for Mellanox OFED's nodes; plugin/server.go
ENV_MOFED: Final = "NVIDIA_MOFED"
# daemon -> NVIDIA's container runtime: "enabled" for GDRCopy's node; plugin/server.go
ENV_GDRCOPY: Final = "NVIDIA_GDRCOPY"
# daemon -> limiter: 0 to 4; HAMi-core
ENV_LOG_LEVEL: Final = "LIBCUDA_LOG_LEVEL"
# daemon -> NVIDIA's container runtime: MiB of each card for the driver to enforce; cdi-hook
ENV_DRIVER_MEMORY_LIMIT: Final = "NVIDIA_GPU_MEMORY_LIMIT"
# user -> NVIDIA's container runtime: MiB to keep for it, refused by webhook and daemon; cdi-hook
ENV_DRIVER_MEMORY_REQUEST: Final = "NVIDIA_GPU_MEMORY_REQUEST"
# webhook, daemon -> limiter: default, force or disable; HAMi-core
ENV_CORE_POLICY: Final = "GPU_CORE_UTILIZATION_POLICY"
# webhook -> limiter: 0 is high, 1 is low; HAMi-core
ENV_TASK_PRIORITY: Final = "CUDA_TASK_PRIORITY"
# user -> daemon, plugin: a true value asks for no limiter; plugin/server.go
ENV_DISABLE_CONTROL: Final = "CUDA_DISABLE_CONTROL"
# user -> dynamic linker: libraries loaded before the limiter, refused by the webhook; ld.so(8)
ENV_PRELOAD: Final = "LD_PRELOAD"

# -- Values of a container's environment -----------------------------------------------------------
# daemon, webhook -> NVIDIA's container runtime: the visible devices that add nothing anywhere; cdi
HIDES_ALL_CARDS: Final = "void"

"""Annotations and objects as seen on real clusters; where mutations start from."""

from __future__ import annotations

CSV_REGISTERS = (
    "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:"
    "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,false:",
    "MLU-45013011-2257-0000-0000-000000000000,10,23308,0,MLU-MLU370-X4,0,false:"
    "MLU-54043011-2257-0000-0000-000000000000,10,23308,0,",
    "GPU-3d8e41ef-48bf-f981-f119-e850eafb2e4a,10,143771,100,"
    "NVIDIA-NVIDIA H20-3e,1,true,3,hami-core:"
    "GPU-6e869947-34aa-ce8b-8861-c04986721746,10,143771,100,"
    "NVIDIA-NVIDIA H20-3e,1,true,4,mig:",
)

JSON_REGISTERS = (
    '[{"id":"GPU-ae833152-60ad-7e72-33e8-cba2c02d7414","index":2,"count":10,"devmem":23028,'
    '"devcore":100,"type":"NVIDIA A10","mode":"hami-core","health":true,"devicepairscore":{}},'
    '{"id":"GPU-93e9eebc-5547-028e-2f99-2dd791d3ede9","index":3,"count":10,"devmem":23028,'
    '"devcore":100,"type":"NVIDIA A10","mode":"hami-core","health":true,"devicepairscore":{}}]',
    '[{"id":"GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec","count":10,"devmem":32768,"devcore":100,'
    '"type":"NVIDIA-Tesla V100-PCIE-32GB","numa":1,"mode":"hami-core","health":true},'
    '{"id":"GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448","index":1,"count":10,"devmem":32768,'
    '"devcore":100,"type":"NVIDIA-Tesla V100-PCIE-32GB","numa":1,'
    '"mode":"hami-core","health":true}]',
    '[{"id":"GPU-4c395b7a-a7e6-d90f-1ced-d96e8dd68288","count":4,"devmem":97887,"devcore":100,'
    '"type":"NVIDIA RTX PRO 6000","mode":"mig","health":true,"migProfiles":['
    '{"name":"1g.24gb","memoryMB":24192,"core":25,"sliceCount":1,"placements":['
    '{"start":0,"size":3},{"start":3,"size":3},{"start":6,"size":3},{"start":9,"size":3}]},'
    '{"name":"2g.48gb","memoryMB":48512,"core":50,"sliceCount":2,"placements":['
    '{"start":0,"size":6},{"start":6,"size":6}]},'
    '{"name":"4g.96gb","memoryMB":97408,"core":100,"sliceCount":4,"placements":['
    '{"start":0,"size":12}]}]}]',
)

NEURON_REGISTERS = (
    '[{"id":"n1-AWSNeuron-0","index":0,"count":2,"devcore":3,"type":"AWSNeuron","health":true},'
    '{"id":"n1-AWSNeuron-1","index":1,"count":2,"devcore":3,"type":"AWSNeuron","health":true}]',
    '[{"id":"n1-AWSNeuron-0","index":0,"count":4,"devcore":15,"devmem":0,"type":"AWSNeuron",'
    '"numa":1,"health":true}]',
)

GRANTS = (
    "GPU-c15bf6bc-3faf-3140-4788-0e1dcb7af8c2,NVIDIA,5000,0:;",
    "GPU-0e8860e1-5ea9-901d-fba1-651385d5e023,NVIDIA,3000,30:"
    "GPU-37dea325-9a7c-6272-6c5e-1a247c8f7807,NVIDIA,3000,30:;",
    "GPU-ebe7c3f7-303d-558d-435e-99a160631fe4,NVIDIA,1000,10:;,,0,0:;",
    ",,0,0:;GPU-0aa6b97c-d386-26ba-a94a-b9d27c2e3a71,NVIDIA,1000,0:;,,0,0:;,,0,0:;,,0,0:;",
    ";GPU-0aa6b97c-d386-26ba-a94a-b9d27c2e3a71,NVIDIA,1000,0:;;;;",
    ";;;",
    ";",
    "GPU-A,NVIDIA,2500,25:;GPU-B,NVIDIA,2500,25:;",
    ";;GPU-A,NVIDIA,1000,1:GPU-B,NVIDIA,1000,1:;",
    "GPU-9192ed3d-b840-cb99-dfe0-2212e49ee1ed[1-0],NVIDIA,10240,0:;",
    "GPU-08d63fe8-4a59-b17e-de5e-04e5c1ce5c41[2-0],NVIDIA,20480,0:;",
    "GPU-2409b7b6-2df6-0343-90dd-2d73da18e0e8,NVIDIA:;",
    "GPU-1cb8edae-82f3-6a6f-1c76-a25281b02033:1,2,8,17,12,6,13,10,NVIDIA,NVIDIA A100 80GB PCIe",
    "n1-AWSNeuron-5,AWSNeuron,0,1:;n1-AWSNeuron-5,AWSNeuron,0,2:;",
    "00000000-03-00.0,XPU,24576,25:;",
)

MIG_ALLOCATIONS = (
    '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-4c395b7a-a7e6-d90f-1ced-d96e8dd68288",'
    '"profile":"1g.24gb","placement":{"start":9,"size":3},'
    '"migUUID":"MIG-a5fa6120-f6fa-51b6-9820-a42112640629","gpuInstanceID":6,'
    '"computeInstanceID":0}]',
    '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-4c395b7a-a7e6-d90f-1ced-d96e8dd68288",'
    '"profile":"2g.48gb","placement":{"start":0,"size":6}},'
    '{"containerIndex":1,"deviceIndex":0,"gpuUUID":"GPU-4c395b7a-a7e6-d90f-1ced-d96e8dd68288",'
    '"profile":"2g.48gb","placement":{"start":6,"size":6}}]',
)

NEURON_IDS = ("0,1,2,3,4,5,6,7", "0", "10,11", "4,6", "11,11", "16,17,20,21,24,25,28,29", "")

QUANTITIES = (
    "1", "2", "8", "16", "0", "3000", "4096", "20Gi", "4Gi", "1500m", "500m", "1k", "2e3", "30",
    "50", "100", "101", "-5", "9000000", "1Ei", "0.5", ".5", "5.", "+1", "9223372036854775807",
    "9223372036854775808", "1e40", "1E5", "1n", "",
)  # fmt: skip

INSTANCE_TYPES = ("trn1.32xlarge", "ml.trn2.48xlarge", "inf2.24xlarge", "inf1.6xlarge", "", "p4d")

POLICIES = (
    "binpack", "spread", "topology-aware", "mutex", "numa", "binpack,numa", "mutex,topology-aware",
    "", "unknown",
)  # fmt: skip

WEIGHTS = ("slot=1,core=1,memory=1", "memory=2, core=0 ,slot=0", "slot=1,core=1", "slot=-1")

LISTS = (
    "GPU-A", "GPU-A,GPU-B", " GPU-A , ", "n1-AWSNeuron-0,n1-AWSNeuron-1", "A10,V100", "NVIDIA-",
    "hami-core,mig", "true", "T", "1", "",
)  # fmt: skip

POD = (
    '{"metadata":{"uid":"u1","namespace":"default","name":"p","resourceVersion":"7",'
    '"creationTimestamp":"2026-06-14T15:05:03Z","labels":{"app":"a"},"annotations":{'
    '"hami.io/vgpu-devices-allocated":"GPU-A,NVIDIA,3000,30:;","hami.io/vgpu-node":"n1"}},'
    '"spec":{"nodeName":"n1","schedulerName":"hami-scheduler","initContainers":[{"name":"i",'
    '"restartPolicy":"Always","resources":{"limits":{"nvidia.com/gpu":"1"}}}],"containers":[{'
    '"name":"c","env":[{"name":"CUDA_DISABLE_CONTROL","value":"true"},{"name":"X","valueFrom":'
    '{"fieldRef":{"fieldPath":"metadata.name"}}}],"securityContext":{"privileged":true},'
    '"resources":{"limits":{"nvidia.com/gpu":"1","nvidia.com/gpumem":"3000"},'
    '"requests":{"cpu":"1"}}}]},"status":{"phase":"Running","initContainerStatuses":[{"name":"i",'
    '"state":{"terminated":{"exitCode":0}}}]}}'
)

NODE = (
    '{"metadata":{"uid":"u2","name":"n1","resourceVersion":"9","labels":{'
    '"node.kubernetes.io/instance-type":"trn1.32xlarge"},"annotations":{'
    '"hami.io/node-handshake":"Requesting_2025-08-07 11:28:25"}},"spec":{"unschedulable":true},'
    '"status":{"capacity":{"aws.amazon.com/neuron":"16","aws.amazon.com/neuroncore":"32"},'
    '"allocatable":{"aws.amazon.com/neuron":"16"},"conditions":[{"type":"Ready",'
    '"status":"True"}]}}'
)

RESOURCE_QUOTAS = (
    '{"metadata":{"name":"q","namespace":"default","uid":"u3","resourceVersion":"5"},"spec":{'
    '"hard":{"limits.nvidia.com/gpumem":"20Gi","limits.nvidia.com/gpucores":"200","pods":"4"}}}',
)

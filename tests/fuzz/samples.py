"""Annotations and objects as seen on real clusters; where mutations start from."""

from __future__ import annotations

CSV7 = (
    "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:"
    "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:",
    "GPU-88dadc4b-c5f2-3d01-4b4c-7dfc09bd1ae7,10,24576,100,NVIDIA-NVIDIA GeForce RTX 3090,0,false:"
    "GPU-458b6298-2798-a9da-8059-821ed05edc66,10,24576,100,NVIDIA-NVIDIA GeForce RTX 3090,0,false:",
    "GPU-61101651-d822-7cac-e1f7-bd627a4b7d5a,10,11264,100,"
    "NVIDIA-NVIDIA GeForce RTX 2080 Ti,0,true:"
    "GPU-271b488e-6801-ad8b-6811-bbfebebb285e,10,22528,100,"
    "NVIDIA-NVIDIA GeForce RTX 2080 Ti,0,true:",
    "MLU-45013011-2257-0000-0000-000000000000,10,23308,0,MLU-MLU370-X4,0,false:"
    "MLU-54043011-2257-0000-0000-000000000000,10,23308,0,",
    "GPU-151ae9c0-83a9-2dd1-8981-b5f44c021a58,1,1126,NVIDIA-NVIDIA GeForce GTX 1080 Ti,true:",
)

CSV9 = (
    "GPU-3d8e41ef-48bf-f981-f119-e850eafb2e4a,10,143771,100,"
    "NVIDIA-NVIDIA H20-3e,1,true,3,hami-core:"
    "GPU-6e869947-34aa-ce8b-8861-c04986721746,10,143771,100,"
    "NVIDIA-NVIDIA H20-3e,1,true,4,hami-core:"
    "GPU-312ab3b4-2aa8-8b2c-0ee1-ed89865621bb,10,143771,100,"
    "NVIDIA-NVIDIA H20-3e,1,true,5,hami-core:"
    "GPU-5e4890bf-3b47-28b9-0aab-03a11daafcee,10,143771,100,"
    "NVIDIA-NVIDIA H20-3e,0,true,0,hami-core:",
    "GPU-40c0923a-6172-5f3c-d299-4f6eaf218ad5,10,258787,500,NVIDIA-NVIDIA H20-3e,0,true,1,mig:"
    "GPU-22e5bae0-3938-7cc7-cab3-3f2b91e20774,10,258787,500,NVIDIA-NVIDIA H20-3e,0,true,2,mig:",
    "GPU-ca904b47-ae7c-20b9-4be2-bf85f75cbf40,10,16376,100,"
    "NVIDIA-NVIDIA RTX A4000,0,true,0,hami-core:",
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

HANDSHAKES = (
    "Reported 2024-01-23 04:30:04.434037031 +0000 UTC m=+1104711.777756895",
    "Reported 2025-04-17 06:39:20.812216312 +0000 UTC m=+90.842043756",
    "Reported_2025.07.15 09:58:39",
    "Reported_2026-06-14T15:05:03Z",
    "Requesting_2024.05.20 11:44:46",
    "Requesting_2025-08-07 11:28:25",
    "Deleted_2025-08-03 19:32:07",
)

LOCKS = (
    "2024-05-13T13:04:17Z",
    "2025-10-20T03:07:02Z,jingyu-test,gputest-6c77bb77f8-gvtzc",
    "2026-06-14T15:05:03Z,default,gang-pod-1",
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

PAIR_SCORES = (
    '[{"uuid":"GPU-12345678-1234-1234-1234-123456780000","score":'
    '{"GPU-12345678-1234-1234-1234-123456780001":50,'
    '"GPU-12345678-1234-1234-1234-123456780002":50}},'
    '{"uuid":"GPU-12345678-1234-1234-1234-123456780001","score":'
    '{"GPU-12345678-1234-1234-1234-123456780000":50,'
    '"GPU-12345678-1234-1234-1234-123456780002":10}},'
    '{"uuid":"GPU-12345678-1234-1234-1234-123456780002","score":'
    '{"GPU-12345678-1234-1234-1234-123456780001":10}}]',
    "",
)

NEURON_IDS = ("0,1,2,3,4,5,6,7", "0", "10,11", "4,6", "11,11", "16,17,20,21,24,25,28,29", "")

QUANTITIES = (
    "1", "2", "8", "16", "0", "3000", "4096", "20Gi", "4Gi", "1500m", "500m", "1k", "2e3", "30",
    "50", "100", "101", "-5", "9000000", "1Ei", "0.5", ".5", "5.", "+1", "9223372036854775807",
    "9223372036854775808", "1e40", "1E5", "1n", "",
)  # fmt: skip

INSTANCE_TYPES = ("trn1.32xlarge", "ml.trn2.48xlarge", "inf2.24xlarge", "inf1.6xlarge", "", "p4d")

NEURON_NODES = (
    ("trn1.32xlarge", "16", "32"),
    ("inf2.24xlarge", "6", "12"),
    ("ml.trn2.48xlarge", "16", "64"),
    ("trn2.3xlarge", "1", "8"),
    ("inf1.6xlarge", "4", "16"),
    ("", "4", "8"),
)

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

FILTER_CALLS = (
    f'{{"Pod":{POD},"Nodes":null,"NodeNames":["n1","n2"]}}',
    f'{{"pod":{POD},"nodes":{{"items":[{NODE},{NODE}]}},"nodenames":null}}',
)

BIND_CALLS = ('{"PodName":"p","PodNamespace":"default","PodUID":"u1","Node":"n1"}',)

NEW_POD = (
    '{"metadata":{"generateName":"p-"},"spec":{"schedulerName":"default-scheduler","containers":['
    '{"name":"c","env":[{"name":"A","value":"b"},{"name":"CUDA_TASK_PRIORITY","value":"1"}],'
    '"resources":{"limits":{"nvidia.com/gpu":"1","nvidia.com/gpumem":"3000","nvidia.com/gpucores":'
    '"30","nvidia.com/priority":"1"},"requests":{"nvidia.com/gpu":"1"}}},{"name":"d","resources":{'
    '"limits":{"nvidia.com/gpumem-percentage":"100"}}},{"name":"e"}]}}'
)

REVIEWS = tuple(
    f'{{"apiVersion":"admission.k8s.io/{version}","kind":"AdmissionReview","request":{{"uid":"r1",'
    '"kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1",'
    f'"resource":"pods"}},"operation":"CREATE","namespace":"default","object":{pod}}}}}'
    for version, pod in (("v1", POD), ("v1", NEW_POD), ("v1beta1", NEW_POD))
)

RESOURCE_QUOTAS = (
    '{"metadata":{"name":"q","namespace":"default","uid":"u3","resourceVersion":"5"},"spec":{'
    '"hard":{"limits.nvidia.com/gpumem":"20Gi","limits.nvidia.com/gpucores":"200","pods":"4"}}}',
)

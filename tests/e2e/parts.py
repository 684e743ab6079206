"""The programs of the cluster: how each is called and the files it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.e2e import toolkit
from tests.e2e.pki import Authority, User, write_json

NODE: Final = "e2e-node"
NODE_IP: Final = "192.168.231.1"  # on a bridge of our own
POD_CIDR: Final = "10.231.0.0/24"
SERVICE_CIDR: Final = "10.232.0.0/24"
SERVICE_IP: Final = "10.232.0.1"  # the API server, for pods
API_PORT: Final = 26443
API_URL: Final = f"https://127.0.0.1:{API_PORT}"
ETCD_PORT: Final = 22379

ADMIN: Final = User(name="admin", token="admin-token", group="system:masters")
CONTROLLERS: Final = User(name="system:kube-controller-manager", token="controllers-token")
SCHEDULER: Final = User(name="system:kube-scheduler", token="scheduler-token")
PROXY: Final = User(name="system:kube-proxy", token="proxy-token", group="system:node-proxier")
KUBELET: Final = User(name=f"system:node:{NODE}", token="kubelet-token", group="system:nodes")
USERS: Final = (ADMIN, CONTROLLERS, SCHEDULER, PROXY, KUBELET)

BUSYBOX: Final = "localhost/busybox:e2e"
PAUSE: Final = "localhost/pause:e2e"
CUDA: Final = "localhost/cuda:e2e"  # busybox too; asks for all cards, as every CUDA image does


def kubeconfig(root: Path, user: User) -> Path:
    """Where that user's kubeconfig lies."""
    return root / f"{user.name.replace(':', '-')}.kubeconfig"


def command(root: Path, name: str) -> list[str]:
    """The command line of one part.

    Raises:
        KeyError: no such part.
    """
    return {
        "etcd": _etcd,
        "kube-apiserver": _apiserver,
        "kube-controller-manager": _controllers,
        "kube-scheduler": _scheduler,
        "kube-proxy": _proxy,
        "containerd": _containerd,
        "kubelet": _kubelet,
    }[name](root)


def _etcd(root: Path) -> list[str]:
    client, peer = f"http://127.0.0.1:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PORT + 1}"
    return [
        "etcd",
        f"--data-dir={root}/etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]


def _apiserver(root: Path) -> list[str]:
    pki = root / "pki"
    return [
        "kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
        f"--secure-port={API_PORT}",
        f"--advertise-address={NODE_IP}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--token-auth-file={pki}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--profiling=false",
        f"--audit-policy-file={root}/audit-policy.json",
        f"--audit-log-path={root}/log/audit.jsonl",
        "--audit-log-maxsize=100000",  # readers keep their place in the file: it is never changed
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
    ]


def _controllers(root: Path) -> list[str]:
    return [
        "kube-controller-manager",
        f"--kubeconfig={kubeconfig(root, CONTROLLERS)}",
        f"--service-account-private-key-file={root}/pki/sa.key",
        f"--root-ca-file={root}/pki/ca.crt",
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--secure-port=0",
    ]


def _scheduler(root: Path) -> list[str]:
    return ["kube-scheduler", f"--config={root}/scheduler.json", "--secure-port=0"]


def _proxy(root: Path) -> list[str]:
    return ["kube-proxy", f"--config={root}/proxy.json"]


def _containerd(root: Path) -> list[str]:
    return ["containerd", "--config", f"{root}/containerd.toml"]


def _kubelet(root: Path) -> list[str]:
    return [
        "kubelet",
        f"--config={root}/kubelet.json",
        f"--kubeconfig={kubeconfig(root, KUBELET)}",
        f"--hostname-override={NODE}",
        f"--node-ip={NODE_IP}",
        f"--cert-dir={root}/kubelet-pki",
        *([f"--root-dir={moved.read_text()}"] if (moved := _moved_root(root)).exists() else []),
    ]


def _moved_root(root: Path) -> Path:
    """The file that names kubelet's folder, where it is not the usual one."""
    return root / "kubelet-root"


def move_kubelet(root: Path, folder: Path | None) -> None:
    """kubelet keeps its files in that folder, or again in the usual one, from its next start on."""
    if folder is None:
        _moved_root(root).unlink(missing_ok=True)
    else:
        _moved_root(root).write_text(str(folder))


def write_files(root: Path) -> None:
    """Everything that the programs read, below the state folder."""
    for sub in ("pki", "log", "run", "kubelet-pki", "containerd", "cni"):
        (root / sub).mkdir(parents=True, exist_ok=True)
    authority = Authority(root / "pki")
    authority.create(
        ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"),
        ("127.0.0.1", NODE_IP, SERVICE_IP),
    )
    authority.write_tokens(USERS)
    for user in USERS:
        authority.write_kubeconfig(kubeconfig(root, user), API_URL, user)
    write_json(
        root / "audit-policy.json",
        {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata"}],
        },
    )
    write_json(
        root / "scheduler.json",
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(kubeconfig(root, SCHEDULER))},
        },
    )
    _write_network(root)
    write_kubelet_config(root)
    (root / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    text = _CONTAINERD.replace("{root}", str(root)).replace("{cdi}", str(toolkit.CDI))
    (root / "containerd.toml").write_text(text + "".join(map(_runtime, toolkit.RuntimeClass)))


def _runtime(name: toolkit.RuntimeClass) -> str:
    """One of NVIDIA's runtimes, as the toolkit adds it to containerd's configuration."""
    table = f'[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}'
    return (
        f'  {table}]\n    runtime_type = "io.containerd.runc.v2"\n'
        f'    {table}.options]\n      BinaryName = "{toolkit.program(name)}"\n'
    )


def _write_network(root: Path) -> None:
    write_json(
        root / "proxy.json",
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clusterCIDR": POD_CIDR,
            "hostnameOverride": NODE,
            "conntrack": {"maxPerCore": 0},
            "clientConnection": {"kubeconfig": str(kubeconfig(root, PROXY))},
            "healthzBindAddress": "127.0.0.1:20256",
            "metricsBindAddress": "127.0.0.1:20249",
        },
    )
    addresses = {
        "type": "host-local",
        "subnet": POD_CIDR,
        "dataDir": str(root / "cni-ipam"),
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "e2e0",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": addresses,
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    write_json(
        root / "cni" / "10-e2e.conflist",
        {"cniVersion": "0.4.0", "name": "e2e", "plugins": [bridge, portmap]},
    )


def write_kubelet_config(
    root: Path,
    feature_gates: dict[str, bool] | None = None,
    *,
    crash_back_off: dict[str, str] | None = None,
) -> None:
    """kubelet's configuration; it is read when kubelet starts.

    cgroup v1 and a missing CAP_SYS_RESOURCE are allowed for: build machines have them so.
    """
    write_json(
        root / "kubelet.json",
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(root / "pki/ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{root}/run/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "address": NODE_IP,
            "port": 20250,
            "readOnlyPort": 0,
            "healthzPort": 20248,
            "registerNode": True,
            "resolvConf": str(root / "resolv.conf"),
            "enforceNodeAllocatable": [],
            "cgroupsPerQOS": True,
            "localStorageCapacityIsolation": False,
            "evictionHard": {
                "nodefs.available": "1%",
                "imagefs.available": "1%",
                "memory.available": "50Mi",
            },
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "4s",
            "syncFrequency": "10s",
            "featureGates": feature_gates or {},
            **({"crashLoopBackOff": crash_back_off} if crash_back_off else {}),
        },
    )


_CONTAINERD: Final = """version = 2
root = "{root}/containerd/root"
state = "{root}/containerd/state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.aufs",
]
[grpc]
  address = "{root}/run/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{root}/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:e2e"
  disable_tcp_service = true
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["{cdi}"]
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{root}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""

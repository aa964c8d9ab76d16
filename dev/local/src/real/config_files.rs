//! The configuration files of a node's programs, as text.

use std::net::Ipv4Addr;
use std::path::Path;

use serde_json::json;

/// The image of the container that holds a pod's namespaces.
pub(super) const SANDBOX_IMAGE: &str = "registry.k8s.io/pause:3.10.1";
/// Where containerd listens, in its node's mount namespace.
pub(super) const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";

/// containerd's configuration. Image pulls fail at once: there is no registry, images are imported.
pub(super) fn containerd(shim: &Path, runc: &Path) -> String {
    format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{SANDBOX_IMAGE}"

[plugins.'io.containerd.cri.v1.runtime']
# Lowering the score of a process takes CAP_SYS_RESOURCE.
restrict_oom_score_adj = true
# Not in this machine's /run/netns.
netns_mounts_under_state_dir = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/opt/cni/bin"]
conf_dir = "/etc/cni/net.d"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
runtime_path = "{shim}"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
"#,
        shim = shim.display(),
        runc = runc.display(),
    )
}

/// The settings of one node's kubelet.
pub(super) struct Kubelet<'a> {
    pub(super) cgroup: &'a str,
    pub(super) client_ca: &'a Path,
    pub(super) certificate: &'a Path,
    pub(super) key: &'a Path,
    pub(super) dns: Ipv4Addr,
}

/// kubelet's configuration, in JSON, which is YAML too.
pub(super) fn kubelet(kubelet: &Kubelet<'_>) -> String {
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "0.0.0.0",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true, "cacheTTL": "10s"},
            "x509": {"clientCAFile": kubelet.client_ca},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": kubelet.certificate,
        "tlsPrivateKeyFile": kubelet.key,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": kubelet.cgroup,
        "failCgroupV1": false,
        "enforceNodeAllocatable": [],
        "failSwapOn": false,
        "clusterDomain": "cluster.local",
        "clusterDNS": [kubelet.dns],
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD_SOCKET}"),
        // The machine's disk is shared with everything else that runs on it.
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "maxPods": 110,
        "nodeStatusUpdateFrequency": "5s",
        // As slow as it may be, so that a small machine with several kubelets stays quiet.
        "syncFrequency": "30s",
        "volumeStatsAggPeriod": "5m",
        "configMapAndSecretChangeDetectionStrategy": "Watch",
        "serializeImagePulls": false,
        "resolvConf": "",
        "logging": {"verbosity": 1},
    });
    format!("{config:#}")
}

/// The chain of network plugins of a node whose network enforces policies.
pub(super) fn calico_cni(node: &str, pods: &str, kubeconfig: &Path) -> String {
    let config = json!({
        "name": "berth",
        "cniVersion": "1.0.0",
        "plugins": [
            {
                "type": "calico",
                "log_level": "warning",
                "datastore_type": "kubernetes",
                "nodename": node,
                // The name is above; no agent writes that file here.
                "nodename_file_optional": true,
                "mtu": 1450,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
                "policy": {"type": "k8s"},
                "kubernetes": {"kubeconfig": kubeconfig},
                // A container starts only when its policies are in force. After this time it would start without a network.
                "policy_setup_timeout_seconds": 60,
                "endpoint_status_dir": "/var/run/calico/endpoint-status",
            },
            {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
        ],
    });
    format!("{config:#}")
}

/// The chain of network plugins of a node in a cluster that is not prepared for Berth: those of the CNI project, which enforce no
/// policies.
pub(super) fn plain_cni(pods: &str) -> String {
    let config = json!({
        "name": "plain",
        "cniVersion": "1.0.0",
        "plugins": [
            {
                "type": "ptp",
                "ipam": {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
            },
            {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
        ],
    });
    format!("{config:#}")
}

/// kube-proxy's configuration.
pub(super) fn kube_proxy(node: &str, kubeconfig: &Path, pods: &str) -> String {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig},
        "hostnameOverride": node,
        "mode": "iptables",
        // Connections from other addresses are masqueraded, so that answers return through the same node.
        "clusterCIDR": pods,
        "detectLocalMode": "ClusterCIDR",
        // The limits belong to the whole machine.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "iptables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    });
    format!("{config:#}")
}

/// Felix, Calico's agent on a node, is configured by its environment.
pub(super) fn felix(node: &str, kubeconfig: &Path) -> Vec<(String, String)> {
    let kubeconfig = kubeconfig.display().to_string();
    [
        ("DATASTORE_TYPE", "kubernetes"),
        ("KUBECONFIG", kubeconfig.as_str()),
        ("FELIX_DATASTORETYPE", "kubernetes"),
        ("FELIX_FELIXHOSTNAME", node),
        ("FELIX_INTERFACEPREFIX", "cali"),
        ("FELIX_NFTABLESMODE", "Disabled"),
        ("FELIX_IPTABLESBACKEND", "NFT"),
        ("FELIX_BPFENABLED", "false"),
        ("FELIX_XDPENABLED", "false"),
        // The case of this name matters. Without it Felix needs libbpf, to look for programs that it never loaded.
        ("FELIX_DebugSkipCTLBCleanup", "true"),
        ("FELIX_IPV6SUPPORT", "false"),
        ("FELIX_IPINIPENABLED", "false"),
        ("FELIX_VXLANENABLED", "false"),
        ("FELIX_WIREGUARDENABLED", "false"),
        ("FELIX_USAGEREPORTINGENABLED", "false"),
        ("FELIX_SERVICELOOPPREVENTION", "Disabled"),
        // As in Calico's own manifests: policies must block what a tenant's pods may not reach.
        ("FELIX_DEFAULTENDPOINTTOHOSTACTION", "ACCEPT"),
        ("FELIX_ENDPOINTSTATUSPATHPREFIX", "/var/run/calico"),
        ("FELIX_HEALTHENABLED", "true"),
        ("FELIX_HEALTHHOST", "127.0.0.1"),
        ("FELIX_HEALTHPORT", "9099"),
        ("FELIX_LOGSEVERITYSCREEN", "Warning"),
        ("FELIX_LOGFILEPATH", "none"),
        ("FELIX_LOGSEVERITYFILE", "none"),
        ("FELIX_LOGSEVERITYSYS", "none"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

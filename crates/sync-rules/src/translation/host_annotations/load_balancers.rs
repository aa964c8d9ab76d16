//! Annotations that set up load balancers.

use super::{HostAnnotation, row};

const LOAD_BALANCER: &str = "load balancers are the platform's, and this setting is not offered here";

/// Annotations that set up load balancers.
pub const LOAD_BALANCERS: &[HostAnnotation] = &[
    row(
        "ako.vmware.com",
        LOAD_BALANCER,
        "https://github.com/vmware/load-balancer-and-ingress-services-for-kubernetes",
    ),
    row(
        "cloud.google.com",
        LOAD_BALANCER,
        "https://cloud.google.com/kubernetes-engine/docs/concepts/service-load-balancer-parameters",
    ),
    row("f5.com", LOAD_BALANCER, "https://clouddocs.f5.com/containers/latest/"),
    row(
        "kube-vip.io",
        LOAD_BALANCER,
        "https://kube-vip.io/docs/usage/kubernetes-services/",
    ),
    row(
        "kubernetes.civo.com",
        LOAD_BALANCER,
        "https://github.com/civo/civo-cloud-controller-manager",
    ),
    row(
        "kubernetes.digitalocean.com",
        LOAD_BALANCER,
        "https://github.com/digitalocean/digitalocean-cloud-controller-manager",
    ),
    row("lb.kubesphere.io", LOAD_BALANCER, "https://openelb.io/docs/"),
    row(
        "lbipam.cilium.io",
        LOAD_BALANCER,
        "https://docs.cilium.io/en/stable/network/lb-ipam/",
    ),
    row(
        "load-balancer.hetzner.cloud",
        LOAD_BALANCER,
        "https://github.com/hetznercloud/hcloud-cloud-controller-manager",
    ),
    row(
        "loadbalancer.openstack.org",
        LOAD_BALANCER,
        "https://github.com/kubernetes/cloud-provider-openstack/blob/master/docs/openstack-cloud-controller-manager/expose-applications-using-loadbalancer-type-service.md",
    ),
    row("loxilb.io", LOAD_BALANCER, "https://docs.loxilb.io/latest/kube-loxilb/"),
    row("metallb.io", LOAD_BALANCER, "https://metallb.io/usage/"),
    row("metallb.universe.tf", LOAD_BALANCER, "https://metallb.io/usage/"),
    row(
        "networking.gke.io",
        LOAD_BALANCER,
        "https://cloud.google.com/kubernetes-engine/docs/concepts/service-load-balancer-parameters",
    ),
    row("openelb.kubesphere.io", LOAD_BALANCER, "https://openelb.io/docs/"),
    row(
        "oraclecloud.com",
        LOAD_BALANCER,
        "https://github.com/oracle/oci-cloud-controller-manager/blob/master/docs/load-balancer-annotations.md",
    ),
    row("purelb.io", LOAD_BALANCER, "https://purelb.gitlab.io/docs/"),
    row(
        "service.beta.kubernetes.io",
        LOAD_BALANCER,
        "https://kubernetes.io/docs/concepts/services-networking/service/#internal-load-balancer",
    ),
    row(
        "service.kubernetes.io",
        LOAD_BALANCER,
        "https://kubernetes.io/docs/reference/labels-annotations-taints/",
    ),
];

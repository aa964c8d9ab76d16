//! Annotations that ask for less, or for something that a program in the tenant can do as well.

use super::{HostAnnotation, row};

const AGENTS: &str = "agents of the platform do not follow it; those that you run in your cluster do";
const AUTOSCALERS: &str = "the platform's autoscalers do not follow it: use a PodDisruptionBudget";
const EDGE: &str = "controllers at the platform's edge do not follow it; those that you run in your cluster do";
const WEBHOOKS: &str = "webhooks of the platform do not follow it; those that you run in your cluster do";

/// Annotations without which an object works as on a cluster that does not have the program.
pub const IGNORED: &[HostAnnotation] = &[
    // Operators put it on their own pods, for one distribution.
    row(
        "workload.openshift.io",
        AGENTS,
        "https://github.com/openshift/enhancements/blob/master/enhancements/workload-partitioning/management-workload-partitioning.md",
    ),
    // Autoscalers and what evicts pods.
    row(
        "cluster-autoscaler.kubernetes.io",
        AUTOSCALERS,
        "https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md",
    ),
    row(
        "descheduler.alpha.kubernetes.io",
        AUTOSCALERS,
        "https://github.com/kubernetes-sigs/descheduler",
    ),
    row(
        "karpenter.sh",
        AUTOSCALERS,
        "https://karpenter.sh/docs/concepts/disruption/",
    ),
    // What makes names and ways in.
    row(
        "external-dns.alpha.kubernetes.io",
        "the platform's DNS does not follow it; an external-dns that you run in your cluster does",
        "https://kubernetes-sigs.github.io/external-dns/latest/docs/annotations/annotations/",
    ),
    row("getambassador.io", EDGE, "https://www.getambassador.io/docs/emissary"),
    row(
        "haproxy.org",
        EDGE,
        "https://www.haproxy.com/documentation/kubernetes-ingress/",
    ),
    row(
        "ingress.kubernetes.io",
        EDGE,
        "https://doc.traefik.io/traefik/routing/providers/kubernetes-ingress/",
    ),
    row(
        "konghq.com",
        EDGE,
        "https://docs.konghq.com/kubernetes-ingress-controller/latest/reference/annotations/",
    ),
    row("nginx.org", EDGE, "https://docs.nginx.com/nginx-ingress-controller/"),
    row(
        "projectcontour.io",
        EDGE,
        "https://projectcontour.io/docs/main/config/annotations/",
    ),
    row(
        "tailscale.com",
        EDGE,
        "https://tailscale.com/kb/1439/kubernetes-operator-cluster-ingress",
    ),
    row(
        "traefik.io",
        EDGE,
        "https://doc.traefik.io/traefik/routing/providers/kubernetes-ingress/",
    ),
    // Webhooks: sidecars, secrets, identities, libraries.
    row(
        "admission.datadoghq.com",
        WEBHOOKS,
        "https://docs.datadoghq.com/containers/cluster_agent/admission_controller/",
    ),
    row(
        "appmesh.k8s.aws",
        WEBHOOKS,
        "https://aws.github.io/aws-app-mesh-controller-for-k8s/",
    ),
    row(
        "azure.workload.identity",
        WEBHOOKS,
        "https://azure.github.io/azure-workload-identity/docs/topics/service-account-labels-and-annotations.html",
    ),
    row(
        "bank-vaults.io",
        WEBHOOKS,
        "https://bank-vaults.dev/docs/mutating-webhook/annotations/",
    ),
    row(
        "banzaicloud.io",
        WEBHOOKS,
        "https://bank-vaults.dev/docs/mutating-webhook/annotations/",
    ),
    row("conjur.org", WEBHOOKS, "https://github.com/cyberark/sidecar-injector"),
    row(
        "consul.hashicorp.com",
        WEBHOOKS,
        "https://developer.hashicorp.com/consul/docs/reference/k8s/annotation-label",
    ),
    row(
        "dapr.io",
        WEBHOOKS,
        "https://docs.dapr.io/reference/arguments-annotations-overview/",
    ),
    row(
        "dynatrace.com",
        WEBHOOKS,
        "https://docs.dynatrace.com/docs/ingest-from/setup-on-k8s",
    ),
    row(
        "eks.amazonaws.com",
        WEBHOOKS,
        "https://github.com/aws/amazon-eks-pod-identity-webhook",
    ),
    row(
        "istio.io",
        WEBHOOKS,
        "https://istio.io/latest/docs/reference/config/annotations/",
    ),
    row(
        "kuma.io",
        WEBHOOKS,
        "https://kuma.io/docs/latest/reference/kubernetes-annotations/",
    ),
    row(
        "linkerd.io",
        WEBHOOKS,
        "https://linkerd.io/2/reference/proxy-configuration/",
    ),
    row(
        "openservicemesh.io",
        WEBHOOKS,
        "https://release-v1-2.docs.openservicemesh.io/docs/guides/app_onboarding/sidecar_injection/",
    ),
    row(
        "opentelemetry.io",
        WEBHOOKS,
        "https://github.com/open-telemetry/opentelemetry-operator",
    ),
    row(
        "operator.1password.io",
        WEBHOOKS,
        "https://developer.1password.com/docs/k8s/injector/",
    ),
    row(
        "vault.hashicorp.com",
        WEBHOOKS,
        "https://developer.hashicorp.com/vault/docs/deploy/kubernetes/injector/annotations",
    ),
    // Agents on nodes and in the cluster: logs, checks, backups. Checks connect to addresses and hooks run commands that the
    // annotation names.
    row(
        "ad.datadoghq.com",
        AGENTS,
        "https://docs.datadoghq.com/containers/kubernetes/integrations/",
    ),
    row(
        "co.elastic.hints",
        AGENTS,
        "https://www.elastic.co/guide/en/fleet/current/hints-annotations-autodiscovery.html",
    ),
    row(
        "co.elastic.logs",
        AGENTS,
        "https://www.elastic.co/guide/en/beats/filebeat/current/configuration-autodiscover-hints.html",
    ),
    row(
        "co.elastic.metrics",
        AGENTS,
        "https://www.elastic.co/guide/en/beats/metricbeat/current/configuration-autodiscover-hints.html",
    ),
    row(
        "fluentbit.io",
        AGENTS,
        "https://docs.fluentbit.io/manual/pipeline/filters/kubernetes",
    ),
    row("velero.io", AGENTS, "https://velero.io/docs/main/backup-hooks/"),
];

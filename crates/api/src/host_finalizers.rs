//! Finalizers that controllers of the host set on objects of tenants, in the requests of syncers. Not every host has the controller that removes them.

/// Kueue's, on pods that it manages. Its webhook adds it, and its controller removes it from pods that have ended.
pub const KUEUE_MANAGED: &str = "kueue.x-k8s.io/managed";
/// That of PodGroups that pods name. API servers with the feature gate `GenericWorkload` add it, and a kube-controller-manager with the same gate removes it.
pub const POD_GROUP_PROTECTION: &str = "scheduling.k8s.io/podgroup-protection";

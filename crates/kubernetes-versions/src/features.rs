//! Kubernetes features that Berth enables because they are disabled by default.

/// Flags that let a version of Kubernetes schedule groups of pods (`spec.schedulingGroup`, PodGroup, Workload).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupScheduling {
    /// Value of `--feature-gates` for every component.
    pub feature_gates: &'static str,
    /// Value of `--runtime-config` for kube-apiserver.
    pub runtime_config: &'static str,
}

/// How to enable group scheduling in a version such as `v1.37.1`; none if the version does not have it. Programs exit if
/// they get a gate that they do not know.
pub fn group_scheduling(version: &str) -> Option<GroupScheduling> {
    let minor: u16 = version.strip_prefix("v1.")?.split('.').next()?.parse().ok()?;
    match minor {
        ..36 => None,
        36 => Some(GroupScheduling {
            feature_gates: "GenericWorkload=true,GangScheduling=true",
            runtime_config: "scheduling.k8s.io/v1alpha2=true",
        }),
        // From this version on, both gates are one.
        37.. => Some(GroupScheduling {
            feature_gates: "GenericWorkload=true",
            runtime_config: "scheduling.k8s.io/v1beta1=true",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_gets_the_gates_it_knows() {
        assert_eq!(group_scheduling("v1.35.2"), None);
        assert_eq!(group_scheduling("nonsense"), None);
        assert!(group_scheduling("v1.36.4").is_some_and(|on| on.feature_gates.contains("GangScheduling")));
        assert!(group_scheduling("v1.37.1").is_some_and(|on| on.runtime_config.contains("v1beta1")));
    }
}

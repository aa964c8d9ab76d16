//! Kubernetes features that Berth enables or disables against their default.

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
    match minor(version)? {
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

/// The gate with which programs of a version show nobody their command line at `/flagz` (`ComponentFlagz`, on by default from 1.36 on); none if they have no
/// such page unless it is asked for.
pub fn without_command_line(version: &str) -> Option<&'static str> {
    (minor(version)? >= 36).then_some("ComponentFlagz=false")
}

/// Whether API servers of a version read admission policies from files (`ManifestBasedAdmissionControlConfig`), which nobody can
/// change through the API.
pub fn static_admission_policies(version: &str) -> bool {
    minor(version).is_some_and(|minor| minor >= 37)
}

fn minor(version: &str) -> Option<u16> {
    version.strip_prefix("v1.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_files_where_that_is_on_by_default() {
        assert!(static_admission_policies("v1.37.1") && static_admission_policies("v1.38.0"));
        assert!(!static_admission_policies("v1.36.4") && !static_admission_policies("nonsense"));
    }

    #[test]
    fn each_version_gets_the_gates_it_knows() {
        assert_eq!(group_scheduling("v1.35.2"), None);
        assert_eq!(without_command_line("v1.35.2"), None);
        assert_eq!(without_command_line("v1.36.4"), Some("ComponentFlagz=false"));
        assert_eq!(group_scheduling("nonsense"), None);
        assert!(group_scheduling("v1.36.4").is_some_and(|on| on.feature_gates.contains("GangScheduling")));
        assert!(group_scheduling("v1.37.1").is_some_and(|on| on.runtime_config.contains("v1beta1")));
    }
}

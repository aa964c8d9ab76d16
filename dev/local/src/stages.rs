//! How simulated kubelets behave: the stages that kwok runs.

/// Every stage with its file name, in the order they are written.
const STAGES: [&str; 8] = [
    include_str!("../stages/node-initialize.yaml"),
    include_str!("../stages/node-heartbeat.yaml"),
    include_str!("../stages/pod-start.yaml"),
    include_str!("../stages/pod-readiness.yaml"),
    include_str!("../stages/pod-update.yaml"),
    include_str!("../stages/pod-complete.yaml"),
    include_str!("../stages/pod-terminate.yaml"),
    include_str!("../stages/pod-delete.yaml"),
];

/// The configuration file of kwok: all stages as one YAML stream.
pub(crate) fn kwok_configuration() -> String {
    STAGES.join("---\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_is_yaml_with_a_name_of_its_own() {
        let mut names = std::collections::BTreeSet::new();
        for stage in STAGES {
            let stage: serde_json::Value = serde_saphyr::from_str(stage).unwrap();
            assert_eq!(stage["apiVersion"], "kwok.x-k8s.io/v1alpha1");
            assert_eq!(stage["kind"], "Stage");
            names.insert(stage["metadata"]["name"].as_str().unwrap().to_owned());
        }
        assert_eq!(names.len(), STAGES.len());
    }
}

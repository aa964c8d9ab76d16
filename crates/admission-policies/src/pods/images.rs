//! Images of pods: those that the tenant's class lists, if it has a list. What a container has already stays, so that what closes it reaches it.
//!
//! The rules are those of `berth_sync_rules::translation::images`, from the same list.

use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, WRITES, cel, field_checks, validation};
use berth_api::policy_annotations;
use berth_sync_rules::translation::images::{ALL_BELOW, HUB, LIBRARY, OLD_HUB, REFERENCE, WITH_REGISTRY, WITHOUT_TAG};

/// The image of the container `c`.
const IMAGE: &str = "c.?image.orValue('')";

/// The lists of a pod's containers.
const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

pub(crate) fn build_policy() -> AdmissionPolicy {
    let mut validations: Vec<Validation> = CONTAINERS.into_iter().map(validate_containers).collect();
    validations.push(validate_volumes());
    AdmissionPolicy {
        name: "berth-images",
        description: "Pods of a tenant run and mount only images that its class lists.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::Everyone,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["pods", "pods/ephemeralcontainers"],
            operations: WRITES,
        }],
        variables: policy_variables(),
        validations,
    }
}

fn policy_variables() -> Vec<(&'static str, String)> {
    let annotation = policy_annotations::IMAGES;
    let old_images = CONTAINERS.map(|list| format!("oldObject.spec.?{list}.orValue([]).map(c, {})", name_and_image()));
    vec![
        cel::allowed_names_variable("images", annotation),
        // With an empty list no image is allowed.
        (
            "allImages",
            format!(
                "!('{annotation}' in namespaceObject.metadata.?annotations.orValue({{}})) || '*' in variables.images"
            ),
        ),
        // With the slash at the end.
        (
            "folders",
            format!("variables.images.filter(p, p.endsWith('{ALL_BELOW}')).map(p, p.substring(0, p.size() - 1))"),
        ),
        (
            "oldImages",
            format!("oldObject == null ? [] : {}", old_images.join(" + ")),
        ),
    ]
}

/// The name of the container `c`, and its image. Names have no spaces, and no two containers of a pod have the same. An image alone would not do: the
/// platform can add a container with one of its own, which no other may take.
fn name_and_image() -> String {
    format!("c.name + ' ' + {IMAGE}")
}

/// Images of containers can change, and ephemeral containers can be added.
fn validate_containers(containers: &str) -> Validation {
    validation(
        format!(
            "variables.allImages || object.spec.?{containers}.orValue([]).all(c, ({}) in variables.oldImages || ({}))",
            name_and_image(),
            is_listed(IMAGE)
        ),
        "images of containers must be those that the tenant's class lists in sync.pods.images",
    )
}

/// Volumes cannot change.
fn validate_volumes() -> Validation {
    validation(
        format!(
            "variables.allImages || oldObject != null || object.spec.?volumes.orValue([]).all(v, !has(v.image) || ({}))",
            is_listed("v.image.?reference.orValue('')")
        ),
        "images of volumes must be those that the tenant's class lists in sync.pods.images",
    )
}

/// Whether the class lists an image. The lists with one entry are there to name what is in them.
fn is_listed(image: &str) -> String {
    format!(
        "{} && [{image}.find(r'{WITHOUT_TAG}')].map(n, {}).all(n, \
         n in variables.images || variables.folders.exists(f, n.startsWith(f)))",
        field_checks::matches(image, &REFERENCE),
        full_name("n")
    )
}

/// The name of an image with registry and folder.
fn full_name(name: &str) -> String {
    let hub = format!("({name}.startsWith('{HUB}/') || {name}.startsWith('{OLD_HUB}/'))");
    format!(
        "{name}.matches(r'{WITH_REGISTRY}') && !{hub} ? {name} : \
         [{hub} ? {name}.substring({name}.indexOf('/') + 1) : {name}].map(p, \
         '{HUB}/' + (p.contains('/') ? '' : '{LIBRARY}') + p)[0]"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_of_a_pod_is_checked() {
        let policy = build_policy();
        let expressions: Vec<&str> = { policy.validations.iter() }
            .map(|validation| validation.expression.as_str())
            .collect();
        for (list, image) in [
            ("containers", "c.?image"),
            ("initContainers", "c.?image"),
            ("ephemeralContainers", "c.?image"),
            ("volumes", "v.image.?reference"),
        ] {
            let of_list = format!("object.spec.?{list}.orValue([]).all(");
            let mut checks = expressions.iter().filter(|expression| expression.contains(&of_list));
            let check = checks.next().unwrap();
            assert!(
                check.contains(&format!("{image}.orValue('').matches(r'{}')", REFERENCE.expression)),
                "{check}"
            );
            assert!(checks.next().is_none(), "{list}");
        }
        let rule = &policy.resource_rules[0];
        assert_eq!(rule.resources, ["pods", "pods/ephemeralcontainers"]);
        assert_eq!(rule.operations, ["CREATE", "UPDATE"]);
    }

    /// Else nobody could change the labels by which policies close a pod whose image the class no longer lists.
    #[test]
    fn images_that_a_pod_has_refuse_no_change_of_it() {
        for Validation { expression, .. } in build_policy().validations {
            assert!(expression.starts_with("variables.allImages || "), "{expression}");
            let stays = expression.contains("(c.name + ' ' + c.?image.orValue('')) in variables.oldImages || (");
            assert!(
                stays || expression.contains(" || oldObject != null || "),
                "{expression}"
            );
        }
        let variables = policy_variables();
        let old = variables.iter().find(|(name, _)| *name == "oldImages").unwrap();
        for list in CONTAINERS {
            let of_list = format!("oldObject.spec.?{list}.orValue([]).map(c, c.name + ' ' + c.?image.orValue(''))");
            assert!(old.1.contains(&of_list), "{list}");
        }
    }

    /// They are put into expressions as they are.
    #[test]
    fn names_need_no_quotes() {
        for text in [HUB, OLD_HUB, LIBRARY, ALL_BELOW, WITHOUT_TAG, WITH_REGISTRY] {
            assert!(!text.contains(['\'', '\\']), "{text}");
        }
    }
}

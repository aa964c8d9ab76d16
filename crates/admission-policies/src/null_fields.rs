//! Fields that are null in what policies see, although no client wrote null.
//!
//! For a policy, an API server takes an object of Kubernetes as its Go type, and expressions see this value as it would be in JSON. There a field without a value
//! is null, unless its JSON tag has `omitempty`, for a time `omitzero`. `has()` is true of such a field, `.orValue()` gives null, and most functions fail on null:
//! then the request of an intact syncer is rejected. `cel::list` and `cel::text` read such fields.
//!
//! Custom resources have no such fields: API servers remove null wherever the schema does not say `nullable: true`, as those of Berth never do. If the definition
//! of a route or a snapshot lets null through, its policy rejects the request, or null means the same as no field.

/// Versions of Kubernetes whose Go types have the fields of [`NULL_FIELDS`]. For a new one, search the files `types.go` of its modules k8s.io/api and
/// k8s.io/apimachinery for fields of pointers, lists, maps and times without these options, in the kinds that policies read. Schemas do not say it: there the
/// fields are optional like all others. A test of `tests/` compares the table with what an API server writes.
pub const NULL_FIELDS_OF: [&str; 2] = ["v1.37.1", "v1.36.4"];

/// Whether policies see null in a field that a request leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// They do: expressions must allow for it.
    SeenAsNull,
    /// The API server rejects the object before it asks policies.
    Rejected,
    /// The API server sets a value.
    Defaulted,
}

/// A field that is in the JSON of an object even if it has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NullField {
    /// Resources whose objects have it.
    pub resources: &'static [&'static str],
    /// The field around it: with `[]` if that is a list of objects that have it, and `object` for fields of the object itself.
    pub parent: &'static str,
    /// Its name.
    pub field: &'static str,
    /// What policies see if it is left out.
    pub left_out: LeftOut,
}

/// Those of [`NULL_FIELDS`] that policies read, each with the field around it.
pub const READ_NULL_FIELDS: [(&str, &str); 6] = [
    ("dataSource", "apiGroup"),
    ("dataSourceRef", "apiGroup"),
    ("devices", "requests"),
    ("object", "endpoints"),
    ("object", "ports"),
    ("projected", "sources"),
];

const fn null(resources: &'static [&'static str], parent: &'static str, field: &'static str) -> NullField {
    left_out(resources, parent, field, LeftOut::SeenAsNull)
}

const fn left_out(
    resources: &'static [&'static str],
    parent: &'static str,
    field: &'static str,
    left_out: LeftOut,
) -> NullField {
    NullField {
        resources,
        parent,
        field,
        left_out,
    }
}

const CLAIMS: &[&str] = &["persistentvolumeclaims"];
const CLAIMS_OF_DEVICES: &[&str] = &["resourceclaims", "resourceclaimtemplates"];
const CERTIFICATES: &[&str] = &["podcertificaterequests"];
const CONDITIONS: &[&str] = &[
    "certificatesigningrequests",
    "namespaces",
    "nodes",
    "persistentvolumeclaims",
    "pods",
    "services",
];
const EVENTS: &[&str] = &["events"];
const GROUPS: &[&str] = &["podgroups"];
const INGRESSES: &[&str] = &["ingresses"];
const PODS: &[&str] = &["pods"];
const PODS_AND_VOLUMES: &[&str] = &["pods", "persistentvolumes"];
const SLICES: &[&str] = &["endpointslices"];

/// All such fields of the kinds that policies read.
pub const NULL_FIELDS: &[NullField] = &[
    // TypedLocalObjectReference and TypedObjectReference.
    null(CLAIMS, "dataSource", "apiGroup"),
    null(CLAIMS, "dataSourceRef", "apiGroup"),
    null(PODS, "dataSource", "apiGroup"),
    null(PODS, "dataSourceRef", "apiGroup"),
    null(INGRESSES, "resource", "apiGroup"),
    // EndpointSlice and Endpoint.
    null(SLICES, "object", "endpoints"),
    null(SLICES, "object", "ports"),
    left_out(SLICES, "endpoints[]", "addresses", LeftOut::Rejected),
    // HTTPIngressRuleValue and HTTPIngressPath.
    left_out(INGRESSES, "http", "paths", LeftOut::Rejected),
    left_out(INGRESSES, "paths[]", "pathType", LeftOut::Rejected),
    // DeviceClaim, OpaqueDeviceConfiguration, AllocatedDeviceStatus and CapacityRequestPolicy.
    null(CLAIMS_OF_DEVICES, "devices", "requests"),
    left_out(CLAIMS_OF_DEVICES, "opaque", "parameters", LeftOut::Rejected),
    null(CLAIMS_OF_DEVICES, "devices[]", "conditions"),
    null(&["resourceslices"], "requestPolicy", "default"),
    // PodSpec and what it has.
    left_out(PODS, "spec", "containers", LeftOut::Rejected),
    null(PODS, "projected", "sources"),
    null(PODS, "evictionResponders[]", "priority"),
    left_out(PODS, "grpc", "service", LeftOut::Defaulted),
    // NodeSelector.
    left_out(
        PODS,
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
        LeftOut::Rejected,
    ),
    left_out(
        &["persistentvolumes"],
        "required",
        "nodeSelectorTerms",
        LeftOut::Rejected,
    ),
    // PodStatus and what it has.
    null(PODS, "extendedResourceClaimStatus", "requestMappings"),
    null(PODS, "mapping[]", "quantity"),
    null(PODS, "nodeAllocatableResourceClaimStatuses[]", "resources"),
    // Sources of volumes.
    null(&["persistentvolumes"], "azureFile", "secretNamespace"),
    null(PODS_AND_VOLUMES, "cephfs", "monitors"),
    null(PODS_AND_VOLUMES, "rbd", "monitors"),
    null(PODS_AND_VOLUMES, "scaleIO", "secretRef"),
    // ContainerImage.
    null(&["nodes"], "images[]", "names"),
    // CSINodeSpec and CSINodeDriver.
    null(&["csinodes"], "spec", "drivers"),
    null(&["csinodes"], "drivers[]", "topologyKeys"),
    // Event and EventSeries of core/v1 and events.k8s.io.
    null(EVENTS, "object", "deprecatedFirstTimestamp"),
    null(EVENTS, "object", "deprecatedLastTimestamp"),
    null(EVENTS, "object", "eventTime"),
    null(EVENTS, "object", "firstTimestamp"),
    null(EVENTS, "object", "lastTimestamp"),
    null(EVENTS, "series", "lastObservedTime"),
    // CertificateSigningRequestSpec and PodCertificateRequestSpec.
    left_out(&["certificatesigningrequests"], "spec", "request", LeftOut::Rejected),
    null(CERTIFICATES, "spec", "pkixPublicKey"),
    null(CERTIFICATES, "spec", "proofOfPossession"),
    null(CERTIFICATES, "spec", "stubPKCS10Request"),
    // PodGroupSpec and PodGroupTemplateReference of v1alpha2, and CompositePodGroupSpec.
    null(GROUPS, "spec", "podGroupTemplateRef"),
    null(GROUPS, "podGroupTemplateRef", "workload"),
    null(&["compositepodgroups"], "spec", "workloadRef"),
    // Conditions of several kinds, and states of containers.
    null(CONDITIONS, "conditions[]", "lastHeartbeatTime"),
    null(CONDITIONS, "conditions[]", "lastProbeTime"),
    null(CONDITIONS, "conditions[]", "lastTransitionTime"),
    null(CONDITIONS, "conditions[]", "lastUpdateTime"),
    null(PODS, "running", "startedAt"),
    null(PODS, "terminated", "startedAt"),
    null(PODS, "terminated", "finishedAt"),
    // PodVolumeHealth and VolumeHealthStatus.
    null(PODS, "volumeHealth[]", "lastTransitionTime"),
    null(CLAIMS, "healthStatus", "lastTransitionTime"),
];

/// Whether expressions see null where an object leaves out `field` of `object`, which is an expression as well.
pub(crate) fn may_be_null(object: &str, field: &str) -> bool {
    let parent = object.rsplit(['.', '?']).next();
    let is_read = |known: &&NullField| known.field == field && Some(known.parent) == parent;
    let mut known = NULL_FIELDS.iter().filter(is_read);
    known.any(|known| known.left_out == LeftOut::SeenAsNull)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdmissionPolicy, all_policies, cel};
    use std::collections::BTreeSet;

    /// Every expression of a policy.
    fn expressions(policy: &AdmissionPolicy) -> Vec<&str> {
        let conditions = policy.conditions.iter().map(|(_, expression)| expression.as_str());
        let variables = policy.variables.iter().map(|(_, expression)| expression.as_str());
        let validations = { policy.validations.iter() }.map(|validation| validation.expression.as_str());
        conditions.chain(variables).chain(validations).collect()
    }

    /// What follows each place where an expression reads the field.
    fn reads<'a>(expression: &'a str, known: &NullField) -> Vec<&'a str> {
        let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
        let is_parent = |object: &str| match known.parent {
            "object" => ["object", "oldObject"].contains(&object.rsplit(['(', ' ', '!']).next().unwrap()),
            // An item, whose name is that of a variable.
            list if list.ends_with("[]") => expression.contains(list.trim_end_matches("[]")),
            parent => object.rsplit(['.', '?']).next() == Some(parent),
        };
        let mut found = Vec::new();
        for (position, _) in expression.match_indices(known.field) {
            let (before, after) = (&expression[..position], &expression[position + known.field.len()..]);
            let object = before.strip_suffix(".?").or_else(|| before.strip_suffix('.'));
            let is_read = object.is_some_and(|object| is_parent(object.trim_end_matches(')')));
            if is_read && !after.starts_with(is_name) {
                found.push(after);
            }
        }
        found
    }

    /// Whether an expression that goes on like this after the field allows for null.
    fn allows_for_null(after: &str) -> bool {
        // Nothing is below null.
        if after.starts_with(".?") {
            return true;
        }
        let inside = after.strip_prefix(".optMap(");
        let inside = inside.and_then(|inside| inside.split_once(", "));
        inside.is_some_and(|(name, of_value)| of_value.starts_with(&format!("dyn({name}) == null")))
    }

    #[test]
    fn no_policy_fails_on_a_field_that_a_request_leaves_out() {
        let mut read = BTreeSet::new();
        for policy in all_policies() {
            let rules = policy.resource_rules.iter();
            let resources: Vec<&str> = rules
                .flat_map(|rule| rule.resources.iter())
                .map(|path| path.split('/').next().unwrap())
                .collect();
            let is_there = |known: &&NullField| known.resources.iter().any(|resource| resources.contains(resource));
            let seen = NULL_FIELDS.iter().filter(is_there);
            for known in seen.filter(|known| known.left_out == LeftOut::SeenAsNull) {
                for expression in expressions(&policy) {
                    for after in reads(expression, known) {
                        read.insert((known.parent, known.field));
                        let (parent, field) = (known.parent, known.field);
                        assert!(
                            allows_for_null(after),
                            "{}: {parent}.{field} may be null: {expression}",
                            policy.name
                        );
                    }
                }
            }
        }
        assert_eq!(read, READ_NULL_FIELDS.into());
    }

    #[test]
    fn what_fails_on_null_is_found() {
        let group = null(CLAIMS, "dataSource", "apiGroup");
        let ports = null(SLICES, "object", "ports");
        let names = null(&["nodes"], "images[]", "names");
        let cases: [(NullField, &str, &[bool]); 11] = [
            (group, "object.spec.?dataSource.?apiGroup.orValue('') + '/'", &[false]),
            (group, "has(object.spec.dataSource.apiGroup)", &[false]),
            (
                group,
                "object.spec.?dataSource.?apiGroup.optMap(t, t).orValue('')",
                &[false],
            ),
            (group, "object.spec.?dataSource.?apiGroup.?x.orValue('')", &[true]),
            (group, "object.spec.?dataSourceRef.?apiGroup.orValue('')", &[]),
            (group, "object.spec.?dataSource.?apiGroupX.orValue('')", &[]),
            (group, "object.spec.?otherdataSource.?apiGroup.orValue('')", &[]),
            (ports, "object.?ports.orValue([])", &[false]),
            (
                ports,
                "oldObject != null && dyn(oldObject).?ports.orValue([])",
                &[false],
            ),
            (ports, "i0.?ports.orValue([])", &[]),
            (names, "object.status.images.all(i, i.names.size() == 0)", &[false]),
        ];
        for (known, expression, expected) in cases {
            let found: Vec<bool> = reads(expression, &known).into_iter().map(allows_for_null).collect();
            assert_eq!(found, expected, "{expression}");
        }
        for (object, field) in [("object.spec.?dataSource", "apiGroup"), ("object", "ports")] {
            for safe in [cel::text(object, field), cel::list(object, field)] {
                let known = [group, ports];
                let found: Vec<bool> = { known.iter().flat_map(|known| reads(&safe, known)) }
                    .map(allows_for_null)
                    .collect();
                assert_eq!(found, [true], "{safe}");
            }
        }
    }

    #[test]
    fn lists_are_null_by_their_parent() {
        for (object, field) in [
            ("object.?spec.?devices", "requests"),
            ("a.?projected", "sources"),
            ("object", "endpoints"),
        ] {
            assert!(may_be_null(object, field), "{object}.{field}");
        }
        for (object, field) in [
            ("c.?resources", "requests"),
            ("object.?spec", "ports"),
            // An API server rejects it.
            ("object.?spec", "containers"),
        ] {
            assert!(!may_be_null(object, field), "{object}.{field}");
        }
    }

    #[test]
    fn each_field_is_listed_once_for_a_resource() {
        let mut seen = BTreeSet::new();
        for known in NULL_FIELDS {
            for resource in known.resources {
                let field = (*resource, known.parent, known.field);
                assert!(seen.insert(field), "{field:?}");
            }
        }
    }
}

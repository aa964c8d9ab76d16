//! The platform's objects in a tenant: what carries the label `berth.dev/managed-by: platform` is control's alone.
//!
//! The tenant's API server denies everybody else to create, change or delete such objects, and to add or remove the label, also where
//! many objects are deleted at once. It does so by a policy in a file, which covers the policies and bindings among these objects, too.
//! The policy goes by the name of the user: nobody in the tenant can be control or the API server, whatever RBAC says (`authorization`).

use super::{
    super::certificates::CONTROL_USER,
    static_policies::{add_file, binding, changes_nothing, policy, rule, validation},
};
use berth_api::labels;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The file.
const FILE: &str = "platform-objects.yaml";
/// Name of the policy and of its binding.
const NAME: &str = "platform-objects.berth.dev.static.k8s.io";
/// What a team reads.
const DENIED: &str = "the object belongs to the platform (label berth.dev/managed-by: platform), which keeps it in every tenant of the \
                      class: only Berth creates, changes and deletes such objects. Ask the platform team";
/// The user that an API server is for itself.
pub(in super::super) const API_SERVER_USER: &str = "system:apiserver";
/// The controller that fills in the rules of roles that aggregate others. It does so again if somebody acts in its name.
pub(super) const AGGREGATION: &str = "request.userInfo.username == 'system:serviceaccount:kube-system:clusterrole-aggregation-controller' && \
                           request.operation == 'UPDATE' && request.resource.group == 'rbac.authorization.k8s.io' && \
                           request.resource.resource == 'clusterroles' && has(object.aggregationRule) && \
                           has(oldObject.aggregationRule) && object.aggregationRule == oldObject.aggregationRule";
/// Updates of a part of an object, such as its status, by controllers.
const PART: &str = "request.operation == 'UPDATE' && has(request.subResource) && request.subResource != ''";
/// The status of a definition says under which names its kind is served, so it decides where the platform's objects go: API servers alone write that.
/// A controller writes in which versions objects are stored, once it has stored them anew.
const SAME_NAMES: &str = "(request.resource.group != 'apiextensions.k8s.io' || request.resource.resource != 'customresourcedefinitions' || \
                          (has(object.status) && has(oldObject.status) && has(object.status.acceptedNames) && has(oldObject.status.acceptedNames) && \
                          object.status.acceptedNames == oldObject.status.acceptedNames && \
                          has(object.status.conditions) && has(oldObject.status.conditions) && ['NamesAccepted', 'Established'].all(t, \
                          object.status.conditions.filter(c, c.type == t) == oldObject.status.conditions.filter(c, c.type == t))))";
/// The status of a namespace may be written with other annotations, which are rules for its pods.
const NOT_A_NAMESPACE: &str = "(request.resource.group != '' || request.resource.resource != 'namespaces')";
/// Finalizers in the spec of a namespace keep it from ending. A controller removes the one of Kubernetes when all in it is gone.
const NO_NEW_FINALIZER: &str = "(!has(object.spec) || !has(object.spec.finalizers) || (has(oldObject.spec) && has(oldObject.spec.finalizers) && \
                                object.spec.finalizers.all(name, name in oldObject.spec.finalizers)))";
/// What is left in a namespace that Berth has deleted. Nobody else can delete a namespace with such objects.
const WITH_ITS_NAMESPACE: &str = "request.operation == 'DELETE' && namespaceObject != null && \
                                  has(namespaceObject.metadata.deletionTimestamp)";

/// Adds the policy to the files of an API server.
pub(super) fn for_api_server(files: &mut BTreeMap<String, String>) {
    add_file(files, FILE, &[platform_policy(), binding(NAME)]);
}

fn platform_policy() -> Value {
    let constraints = json!({
        "matchPolicy": "Equivalent",
        // Requests of which neither the object before nor the object after has the label cost nothing.
        "objectSelector": {"matchLabels": {(labels::MANAGED_BY): labels::MANAGED_BY_PLATFORM}},
        "resourceRules": [rule("*", &["CREATE", "DELETE"], &["*"]), rule("*", &["UPDATE"], &["*/*"])],
        // They get the labels of their Services. No manifest has them.
        "excludeResourceRules": [
            rule("discovery.k8s.io", &["*"], &["endpointslices"]),
            rule("", &["*"], &["endpoints"]),
        ],
    });
    let users = format!("request.userInfo.username in ['{CONTROL_USER}', '{API_SERVER_USER}']");
    let same_annotations = same_field("annotations");
    let same_labels_and_life = same_labels_and_life();
    let exempt = [
        users,
        format!("({WITH_ITS_NAMESPACE})"),
        format!(
            "({PART} && {SAME_NAMES} && {same_labels_and_life} && ({NOT_A_NAMESPACE} || {same_annotations} && {NO_NEW_FINALIZER}))"
        ),
        format!("({AGGREGATION} && {same_labels_and_life})"),
        format!("({})", changes_nothing()),
    ];
    policy(NAME, &constraints, &[], &[validation(&exempt.join(" || "), DENIED)])
}

/// Whether an update leaves labels, owners and finalizers as they were. Not all kinds keep them when a status is written. An owner that does not
/// exist, or a finalizer, decides on the life of an object.
pub(super) fn same_labels_and_life() -> String {
    ["labels", "ownerReferences", "finalizers"].map(same_field).join(" && ")
}

/// Whether an update leaves a map or a list in the metadata as it was.
fn same_field(field: &str) -> String {
    let (new, old) = (
        format!("object.metadata.{field}"),
        format!("oldObject.metadata.{field}"),
    );
    format!("(has({new}) ? has({old}) && {new} == {old} : !has({old}))")
}

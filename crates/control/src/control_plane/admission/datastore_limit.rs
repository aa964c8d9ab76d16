//! What the API server of a tenant refuses once the tenant stores as much as it may.
//!
//! From 100 percent on it creates nothing more, and ConfigMaps and Secrets cannot grow. From 110 percent on no object can grow. With as
//! many CustomResourceDefinitions as the tenant may have, it creates no more of them. Deletions always work, and so do updates that do not
//! make an object larger, such as those that remove a finalizer.
//!
//! The policies are a file of the API server and no objects of the tenant, so that nobody in the tenant can delete or weaken them, nor
//! evade them under another name: they make no difference between users, except for what the API server needs to start, and for the
//! bindings by which people who could make room have their roles.

use super::{
    super::certificates::CONTROL_USER,
    own_objects,
    static_policies::{add_file, binding, policy, rule, validation},
};
use berth_api::DatastoreUsage;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The file.
const FILE: &str = "datastore-limit.yaml";
/// Name of the policy on sizes and of its binding. API servers accept names with this ending from files only.
const NAME: &str = "datastore-limit.berth.dev.static.k8s.io";
/// The same for the policy on CustomResourceDefinitions.
const DEFINITIONS_NAME: &str = "definition-limit.berth.dev.static.k8s.io";
/// What a team reads.
const FULL: &str = "the tenant stores as much as its class allows: delete objects that are no longer needed, or ask the \
                    platform team to raise spec.limits.datastoreBytes or datastoreObjects of the class";
/// The same for an update that makes an object larger.
const GROWTH_DENIED: &str = "the tenant stores more than its class allows, so no object can become larger: delete objects that \
                             are no longer needed, or ask the platform team to raise spec.limits.datastoreBytes or \
                             datastoreObjects of the class";
/// The same for a CustomResourceDefinition.
const DEFINITIONS_FULL: &str = "the tenant has as many CustomResourceDefinitions as its class allows: delete those that are no \
                                longer needed, or ask the platform team to raise spec.limits.customResourceDefinitions of the \
                                class";
/// Fields in which ConfigMaps and Secrets have their content.
const CONTENT: [&str; 2] = ["data", "binaryData"];

/// The user that an API server is for itself. No other can be it (see `authorization`), but what is exempt has limits of its own nevertheless.
const API_SERVER: &str = "request.userInfo.username == 'system:apiserver'";
/// Groups in which an API server creates objects for itself when it starts, and the largest size of each: several times that of
/// the largest one. Without them, it ends or never becomes ready, and an earlier one without the policy would go on.
const BOOTSTRAP: [(&str, u32); 6] = [
    ("rbac.authorization.k8s.io", 8 << 10),
    ("flowcontrol.apiserver.k8s.io", 4 << 10),
    ("apiregistration.k8s.io", 2 << 10),
    ("networking.k8s.io", 2 << 10),
    ("scheduling.k8s.io", 2 << 10),
    ("", 4 << 10),
];
/// Of these it creates more, until no object may grow: a version that Berth does not know may have more roles, and each version of a
/// `CustomResourceDefinition` has an `APIService`. It is ready without the latter.
const MORE: &str = "request.resource.group in ['rbac.authorization.k8s.io', 'flowcontrol.apiserver.k8s.io'] || \
                    request.resource.group == 'apiregistration.k8s.io' && request.resource.resource == 'apiservices' && \
                    !has(object.spec.service)";
/// Each Service has one for each of its addresses. An API server creates those that are missing, and is not ready before.
const ADDRESSES: &str = "request.resource.group == 'networking.k8s.io' && request.resource.resource == 'ipaddresses'";
/// Bytes of each part of an `IPAddress` where no object may grow: their number is not limited.
const MAX_ADDRESS: u32 = 1 << 10;
/// Objects that an API server creates when it starts as copies of others, which the tenant can make large: only four, so their size is not
/// limited.
const COPIES: &str = "request.resource.group == 'rbac.authorization.k8s.io' && (request.resource.resource == 'clusterroles' && \
                      object.metadata.name in ['system:aggregate-to-admin', 'system:aggregate-to-edit', \
                      'system:aggregate-to-view'] || request.resource.resource == 'clusterrolebindings' && \
                      object.metadata.name == 'system:public-info-viewer')";
/// Bindings of control, by which people and Argo CD have their roles. One of which somebody lost the role while no API server ran is deleted in etcd
/// (docs/adr/0052). If control could not create it again, all others would have lost it as well, and with it the right to delete what fills the tenant.
/// Only few have such names, and the spec limits their subjects, so their size is not limited. No other user can be control (see `authorization`).
const RESTORED_BINDINGS: &str = "request.resource.group == 'rbac.authorization.k8s.io' && request.resource.resource == 'clusterrolebindings' && \
                                 object.metadata.name.startsWith('berth:')";
/// Bytes up to which an object may grow by updates in any case, without status and managed fields: Leases are renewed, and small values
/// change. Together with the following two this is what an object can gain, so it is small.
const MAX_CONTENT: u32 = 2 << 10;
/// The same for the status: that of a pod with several containers fits.
const MAX_STATUS: u32 = 8 << 10;
/// The same for managed fields: each writer of an object has an entry there.
const MAX_MANAGED_FIELDS: u32 = 8 << 10;
/// The same for an object that is being deleted: who removes a finalizer may be a new writer.
const MAX_MANAGED_FIELDS_IN_DELETION: u32 = 16 << 10;
/// The same for status and managed fields of a Job: both list the pods that have ended and are not counted yet, up to 500.
const MAX_JOB: u32 = 32 << 10;
const JOB: &str = "request.resource.group == 'batch' && request.resource.resource == 'jobs'";
/// Bytes that managed fields gain when one of the last finalizers is removed, or an API server corrects an object, however large they are.
const NEW_WRITER: u32 = 1 << 10;
/// Bytes that the status of an `APIService` of the API server's own gains when it adds the condition that it is available. It is not ready before.
const NEW_CONDITION: u32 = 1 << 10;
/// Updates that remove one of the last finalizers of an object that is being deleted. It gets no new ones.
const LAST_FINALIZERS: &str = "has(oldObject.metadata.finalizers) && size(oldObject.metadata.finalizers) <= 8 && \
                               (has(object.metadata.finalizers) ? size(object.metadata.finalizers) : 0) < \
                               size(oldObject.metadata.finalizers)";
/// Bytes by which an API server may extend one of its own roles, however large the tenant has made it: it adds the rules that are missing, and
/// ends if it cannot.
const MAX_MISSING_RULES: u32 = 32 << 10;
/// The same for bindings, to which it adds subjects: the largest of its own has three.
const MAX_MISSING_SUBJECTS: u32 = 1 << 10;
/// Bytes of the spec that an API server may restore in one of its own objects, however large the tenant has made the rest.
const MAX_RESTORED: u32 = 4 << 10;
/// Groups of objects whose spec an API server restores. It is not ready before.
const RESTORED: &str = "request.resource.group in ['flowcontrol.apiserver.k8s.io', 'apiregistration.k8s.io']";
/// An annotation that it adds to them.
const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";
/// Leases of components that delete what belongs to deleted objects. If one is gone, nobody could take over.
const LEADERS: &str = "request.resource.group == 'coordination.k8s.io' && request.resource.resource == 'leases' && \
                       request.namespace == 'kube-system' && object.metadata.name in ['kube-controller-manager', \
                       'kube-scheduler']";
/// Bindings of pods to nodes, without anything that the API server would add to the pod.
const PLAIN_BINDING: &str = "request.resource.resource == 'pods' && has(request.subResource) && \
                             request.subResource == 'binding' && !has(object.metadata.annotations) && (!has(object.metadata.labels) || \
                             size(object.metadata.labels) <= 8)";

/// Adds the policies that a usage calls for to the files of an API server.
pub(super) fn for_api_server(usage: DatastoreUsage, files: &mut BTreeMap<String, String>) {
    let mut documents = Vec::new();
    if usage.full || usage.growth_denied {
        documents.extend([size_policy(usage.growth_denied), binding(NAME)]);
    }
    if usage.definitions_full {
        documents.extend([definition_policy(), binding(DEFINITIONS_NAME)]);
    }
    if !documents.is_empty() {
        add_file(files, FILE, &documents);
    }
}

fn size_policy(growth_denied: bool) -> Value {
    let create = rule("*", &["CREATE"], &["*"]);
    let (included, excluded) = if growth_denied {
        let binding = rule("", &["CREATE"], &["pods/binding"]);
        // With every subresource.
        let update = rule("*", &["UPDATE"], &["*/*"]);
        (vec![create, binding, update], Vec::new())
    } else {
        let update = rule("", &["UPDATE"], &["configmaps", "secrets"]);
        // Without Leases nodes are lost, and no controller manager becomes the leader.
        let leases = rule("coordination.k8s.io", &["CREATE"], &["leases"]);
        (vec![create, update], vec![leases])
    };
    let mut variables: Vec<Value> = SIZES.iter().map(|size| size.variable("object")).collect();
    variables.push(json!({"name": "isOwn", "expression": is_own()}));
    let mut validations = vec![validation(&creation(growth_denied), FULL), validation(&values(), FULL)];
    if growth_denied {
        variables.extend(SIZES.iter().map(|size| size.variable("oldObject")));
        validations.extend(growth().iter().map(|expression| validation(expression, GROWTH_DENIED)));
    }
    policy(NAME, &constraints(&included, &excluded), &variables, &validations)
}

fn definition_policy() -> Value {
    let create = rule("apiextensions.k8s.io", &["CREATE"], &["customresourcedefinitions"]);
    let denied = validation("false", DEFINITIONS_FULL);
    policy(DEFINITIONS_NAME, &constraints(&[create], &[]), &[], &[denied])
}

fn constraints(included: &[Value], excluded: &[Value]) -> Value {
    json!({"matchPolicy": "Equivalent", "resourceRules": included, "excludeResourceRules": excluded})
}

/// Part of an object whose size is limited. Each size is a variable of the policy: it is computed once, only if it is needed, and has a
/// cost limit of its own.
#[derive(Clone, Copy)]
enum Size {
    /// Everything but the status and what every update changes.
    Content,
    Status,
    ManagedFields,
}

/// All sizes.
const SIZES: [Size; 3] = [Size::Content, Size::Status, Size::ManagedFields];

impl Size {
    /// Name of the variable with the size in `object` or `oldObject`.
    fn name(self, of: &str) -> String {
        let part = match self {
            Self::Content => "Content",
            Self::Status => "Status",
            Self::ManagedFields => "ManagedFields",
        };
        format!("{of}{part}")
    }

    /// The variable: bytes as text.
    fn variable(self, of: &str) -> Value {
        let expression = match self {
            Self::Content => content_size(of),
            Self::Status => field_size(of, "status"),
            Self::ManagedFields => field_size(of, "metadata.managedFields"),
        };
        json!({"name": self.name(of), "expression": expression})
    }

    /// Whether an object has at most `max` bytes of this.
    fn is_at_most(self, max: u32) -> String {
        format!("variables.{} <= {max}", self.name("object"))
    }

    /// Whether an update adds nothing to it.
    fn is_not_larger(self) -> String {
        format!(
            "variables.{} <= variables.{}",
            self.name("object"),
            self.name("oldObject")
        )
    }
}

/// What is created in spite of the policy: what the API server needs to start, and bindings that control restores. Where no object may grow, Leases are not exempt
/// as a whole any more, and bindings must add nothing to their pods.
fn creation(growth_denied: bool) -> String {
    let bootstrap = bootstrap(growth_denied);
    let restored = format!("(request.userInfo.username == '{CONTROL_USER}' && {RESTORED_BINDINGS})");
    let exempt = format!("{bootstrap} || ({API_SERVER} && {COPIES}) || {restored}");
    if growth_denied {
        let leader = format!("({LEADERS} && {})", is_small(MAX_CONTENT));
        format!("request.operation != 'CREATE' || {exempt} || {leader} || ({PLAIN_BINDING})")
    } else {
        format!("request.operation != 'CREATE' || {exempt}")
    }
}

/// Whether an API server creates or updates what it needs to start. Where no object may grow, this is its own objects and addresses of
/// Services only.
fn bootstrap(growth_denied: bool) -> String {
    let sizes = BOOTSTRAP.map(|(group, max)| format!("request.resource.group == '{group}' && {}", is_small(max)));
    let sizes = sizes.join(" || ");
    if growth_denied {
        let address = SIZES.map(|size| size.is_at_most(MAX_ADDRESS)).join(" && ");
        format!("(variables.isOwn && ({sizes}) || {API_SERVER} && {ADDRESSES} && {address})")
    } else {
        format!("((variables.isOwn || {API_SERVER} && ({MORE} || {ADDRESSES})) && ({sizes}))")
    }
}

/// Whether an API server creates or updates one of the objects that it creates and corrects when it starts.
fn is_own() -> String {
    let is_own = own_objects::is_one_of(own_objects::OWN.iter(), "object.metadata.name");
    format!("{API_SERVER} && ({is_own})")
}

/// Updates by which an API server corrects what the tenant changed in its own objects when it starts. If one was denied, a new API server would
/// never be ready.
fn correction() -> String {
    let role = format!(
        "(variables.isOwn && request.resource.group == 'rbac.authorization.k8s.io' && {} + (request.resource.resource in \
         ['clusterroles', 'roles'] ? {MAX_MISSING_RULES} : {MAX_MISSING_SUBJECTS}))",
        Size::Content.is_not_larger()
    );
    let old = "has(oldObject.metadata.annotations) && name in oldObject.metadata.annotations && \
               object.metadata.annotations[name] == oldObject.metadata.annotations[name]";
    let annotations = format!(
        "(key == 'annotations' && object.metadata.annotations.all(name, {old} || name == '{AUTO_UPDATE}' && \
         size(object.metadata.annotations[name]) <= 5))"
    );
    let spec = field_size("object", "spec");
    let restored = format!(
        "(variables.isOwn && {RESTORED} && {} && {spec} <= {MAX_RESTORED})",
        same_metadata(&annotations)
    );
    format!("{role} || {restored}")
}

/// Whether the content of an object has at most `max` bytes, and nothing else of it is large.
fn is_small(max: u32) -> String {
    let parts = [
        Size::Content.is_at_most(max),
        Size::Status.is_at_most(MAX_STATUS),
        Size::ManagedFields.is_at_most(MAX_MANAGED_FIELDS),
    ];
    parts.join(" && ")
}

/// Updates of ConfigMaps and Secrets: no value is new or longer.
fn values() -> String {
    let not_larger = CONTENT.map(|field| {
        format!(
            "(!has(object.{field}) || (has(oldObject.{field}) && (object.{field} == oldObject.{field} || \
             object.{field}.all(key, key in oldObject.{field} && size(bytes(object.{field}[key])) <= \
             size(bytes(oldObject.{field}[key]))))))"
        )
    });
    format!(
        "request.operation != 'UPDATE' || request.resource.group != '' || !(request.resource.resource in ['configmaps', \
         'secrets']) || ({})",
        not_larger.join(" && ")
    )
}

/// Updates of any object: each part is as before, small, or not larger than before. The first is decided without a size, so that a finalizer
/// can be removed from any object.
fn growth() -> [String; 3] {
    let update = "request.operation != 'UPDATE'";
    let fits = |size: Size, max: u32| format!("{} || {}", size.is_at_most(max), size.is_not_larger());
    let is_job = |size: Size| format!("({JOB} && {})", size.is_at_most(MAX_JOB));
    let managed_fields = Size::ManagedFields;
    let in_deletion = format!(
        "(has(oldObject.metadata.deletionTimestamp) && ({} || {LAST_FINALIZERS} && {} + {NEW_WRITER}))",
        managed_fields.is_at_most(MAX_MANAGED_FIELDS_IN_DELETION),
        managed_fields.is_not_larger()
    );
    let is_available = format!(
        "(variables.isOwn && request.resource.group == 'apiregistration.k8s.io' && {} + {NEW_CONDITION})",
        Size::Status.is_not_larger()
    );
    let is_corrected = format!("(variables.isOwn && {} + {NEW_WRITER})", managed_fields.is_not_larger());
    [
        format!(
            "{update} || {} || {} || {} || {}",
            same_content(),
            bootstrap(true),
            correction(),
            fits(Size::Content, MAX_CONTENT)
        ),
        format!(
            "{update} || {} || {} || {} || {is_available}",
            same_field("status"),
            fits(Size::Status, MAX_STATUS),
            is_job(Size::Status)
        ),
        format!(
            "{update} || {} || {} || {in_deletion} || {} || {is_corrected}",
            same_field("metadata.managedFields"),
            fits(managed_fields, MAX_MANAGED_FIELDS),
            is_job(managed_fields)
        ),
    ]
}

/// Fields of the metadata that every update changes.
const CHANGING: &str = "['managedFields', 'resourceVersion', 'generation']";

/// Whether an update leaves the content as it was, except that finalizers may be gone.
fn same_content() -> String {
    let text = |of: &str| format!("size('%s'.format([{of}.metadata.finalizers]))");
    let finalizers = format!(
        "(key == 'finalizers' && has(oldObject.metadata.finalizers) && {} <= {})",
        text("object"),
        text("oldObject")
    );
    format!(
        "(object.all(key, key in ['metadata', 'status'] || (key in oldObject && object[key] == oldObject[key])) && {})",
        same_metadata(&finalizers)
    )
}

/// Whether an update leaves the metadata as they were, except what every update changes, and the `exception` for a key.
fn same_metadata(exception: &str) -> String {
    format!(
        "object.metadata.all(key, key in {CHANGING} || (key in oldObject.metadata && object.metadata[key] == \
         oldObject.metadata[key]) || {exception})"
    )
}

/// Whether an update leaves a field as it was, or removes it.
fn same_field(field: &str) -> String {
    format!("!has(object.{field}) || (has(oldObject.{field}) && object.{field} == oldObject.{field})")
}

/// The bytes of an object as text, without its status and without what every update changes.
fn content_size(of: &str) -> String {
    let fields = format!("{of}.map(key, !(key in ['metadata', 'status']), [key, {of}[key]])");
    let metadata = format!("{of}.metadata.map(key, !(key in {CHANGING}), [key, {of}.metadata[key]])");
    format!("size(bytes('%s'.format([[{fields}, {metadata}]])))")
}

/// The bytes of one field as text; 0 if it is missing.
fn field_size(of: &str, field: &str) -> String {
    format!("(has({of}.{field}) ? size(bytes('%s'.format([{of}.{field}]))) : 0)")
}

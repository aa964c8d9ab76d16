//! Pieces of expressions that several policies use.

use super::{BYPASS, RESOURCE};
use berth_api::{GROUP, labels, names, policy_annotations, sync_policy::PriorityBand, system};

/// Reference to the variable [`tenant_slug_variable`].
pub const TENANT_SLUG: &str = "variables.slug";

/// The node on which the pod runs whose token the request has, as a list; empty for other users, also for kubelets.
pub const NODES_OF_USER: &str = "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'].orValue([])";

/// Variable `slug`: the slug of the tenant that the object's namespace belongs to.
pub fn tenant_slug_variable() -> (&'static str, String) {
    ("slug", format!("namespaceObject.metadata.labels['{}']", labels::TENANT))
}

/// Variable: the names that the tenant's class allows, from a policy annotation of the namespace; empty without the annotation. Without the filter,
/// the list of nothing would be a list with the empty name: that of an Ingress for every host, and of a snapshot of any class.
pub fn allowed_names_variable(name: &'static str, annotation: &str) -> (&'static str, String) {
    let list =
        format!("namespaceObject.metadata.?annotations[?'{annotation}'].orValue('').split(',').filter(n, n != '')");
    (name, list)
}

/// Whether the variable of [`allowed_names_variable`] lists `text`, or `*`.
pub fn list_allows(list: &str, text: &str) -> String {
    format!("({text} in variables.{list} || '*' in variables.{list})")
}

/// Variable `priorityClasses`: the host's PriorityClasses of the tenant's class.
pub fn priority_classes_variable() -> (&'static str, String) {
    allowed_names_variable("priorityClasses", policy_annotations::PRIORITY_CLASSES)
}

/// Whether what has the PriorityClass `class`, empty for none, has a priority of the tenant's class; needs [`priority_classes_variable`]. Without a name
/// it has the host's default priority, which may be beyond the band of the class.
pub fn is_priority_of_class(class: &str) -> String {
    let prefix = PriorityBand::NAME_PREFIX;
    format!(
        "({class} in variables.priorityClasses || \
         ({class} == '' && !variables.priorityClasses.exists(p, p.startsWith('{prefix}'))))"
    )
}

/// Whether the request comes from a service account of the tenant's control-plane namespace, whose name is the name of the
/// workload namespace and a suffix ([`berth_api::names::TenantId`]).
pub fn is_tenant_identity() -> String {
    "(('system:serviceaccounts:' + request.?namespace.orValue('') + '-cp') in request.userInfo.?groups.orValue([]))"
        .into()
}

/// Whether the request comes from the gateway.
pub fn is_gateway() -> String {
    format!("request.userInfo.?username.orValue('') == '{}'", system::GATEWAY_USER)
}

/// Whether the request comes from a kubelet.
pub fn is_kubelet() -> String {
    "('system:nodes' in request.userInfo.?groups.orValue([]))".into()
}

/// Whether RBAC lets the requesting user bypass admission policies.
pub fn may_bypass_policies() -> String {
    format!("{}.check('{BYPASS}').allowed()", authorizer_of(RESOURCE))
}

/// Whether RBAC lets the requesting user delete pods in every namespace, as the controllers of Kubernetes and the platform.
pub fn may_delete_all_pods() -> String {
    "authorizer.group('').resource('pods').check('delete').allowed()".into()
}

/// Most labels, and most annotations, that an expression goes through on objects which others can fill. If an evaluation costs too much, an API
/// server rejects the request, that of the platform as well: somebody could so close an object to everybody.
pub const MAX_ENTRIES: usize = 1_000;

/// The start of a question to RBAC about the requesting user's rights on a resource of Berth.
pub fn authorizer_of(resource: &str) -> String {
    format!("authorizer.group('{GROUP}').resource('{resource}')")
}

/// Whether a node is the tenant's alone, in a request of its syncer. The role of a syncer lists these nodes by name: it may read their usage
/// ([`berth_sync_rules::permissions::host_node_metrics_rule`]).
pub fn is_own_node(name: &str) -> String {
    format!("authorizer.group('metrics.k8s.io').resource('nodes').name({name}).check('get').allowed()")
}

/// Whether a name has the form of the workload namespace of a tenant ([`names::is_like_tenant_namespace`]). Those of control-plane namespaces do
/// not match.
pub fn is_like_workload_namespace(name: &str) -> String {
    format!("{name}.matches('{}')", names::WORKLOAD_NAMESPACE_PATTERN)
}

/// Whether a name has the form of the workload or control-plane namespace of a tenant ([`names::is_like_tenant_namespace`]).
pub fn is_like_tenant_namespace(name: &str) -> String {
    format!("{name}.matches('{}')", names::TENANT_NAMESPACE_PATTERN)
}

/// Whether an object carries the label of what a syncer writes.
pub fn is_managed_by_syncer(object: &str) -> String {
    format!(
        "{object}.metadata.?labels[?'{}'].orValue('') == '{}'",
        labels::MANAGED_BY,
        labels::MANAGED_BY_SYNCER
    )
}

/// Whether the request changes no owner of the object: the garbage collector deletes what has an owner that does not exist.
pub fn owners_unchanged() -> String {
    let owners = |object: &str| format!("{object}.metadata.?ownerReferences.orValue([])");
    format!(
        "{} == (oldObject == null ? [] : {})",
        owners("object"),
        owners("oldObject")
    )
}

/// Whether the key of a label, annotation or taint is reserved for Berth (as [`labels::is_reserved`]).
pub fn is_reserved_key(key: &str) -> String {
    format!("({key}.startsWith('{GROUP}/') || {key}.contains('.{GROUP}/'))")
}

/// Variables `labels`, `oldLabels`, `annotations`, `oldAnnotations`: the object's metadata after and before the request.
pub fn metadata_variables() -> [(&'static str, String); 4] {
    let new = |field: &str| format!("object.metadata.?{field}.orValue({{}})");
    let old = |field: &str| format!("oldObject == null ? {{}} : oldObject.metadata.?{field}.orValue({{}})");
    [
        ("labels", new("labels")),
        ("oldLabels", old("labels")),
        ("annotations", new("annotations")),
        ("oldAnnotations", old("annotations")),
    ]
}

/// Whether none of these variables with maps has more than [`MAX_ENTRIES`] entries.
pub fn have_few_entries(maps: &[&str]) -> String {
    let is_small = |map: &&str| format!("variables.{map}.size() <= {MAX_ENTRIES}");
    maps.iter().map(is_small).collect::<Vec<_>>().join(" && ")
}

/// Whether labels and annotations of the object are few enough before and after the request, or RBAC lets the user bypass that; needs
/// [`metadata_variables`].
pub fn metadata_has_few_entries() -> String {
    let maps = ["labels", "oldLabels", "annotations", "oldAnnotations"];
    format!("({}) || {}", have_few_entries(&maps), may_bypass_policies())
}

/// Whether the request adds, changes and removes no entry whose key `k` matches the expression `which`. False if there are more entries than
/// [`MAX_ENTRIES`].
pub fn entries_unchanged(new: &str, old: &str, which: &str) -> String {
    format!(
        "{} && \
         variables.{new}.all(k, !{which} || (k in variables.{old} && variables.{old}[k] == variables.{new}[k])) && \
         variables.{old}.all(k, !{which} || k in variables.{new})",
        have_few_entries(&[new, old])
    )
}

/// Whether the entry with the key `k` of the map may be there: Berth's own, one that the list of [`allowed_names_variable`] contains
/// (its key, or `domain/*`), or one that the request leaves as it was. Controllers of the host write entries as well. The maps are the names
/// of two variables, with the entries after and before the request, as those of [`metadata_variables`].
pub fn entry_allowed((new, old): (&str, &str), list: &str) -> String {
    format!(
        "({} || k in variables.{list} || (k.split('/')[0] + '/*') in variables.{list} || \
         (k in variables.{old} && variables.{old}[k] == variables.{new}[k]))",
        is_reserved_key("k")
    )
}

/// The list `field` of `object`; empty if there is none, or null, as for those in `null_fields`.
pub fn list(object: &str, field: &str) -> String {
    format!("{object}.?{field}.optMap(l, dyn(l) == null ? [] : l).orValue([])")
}

/// The text `field` of `object`; empty if there is none, or null, as for those in `null_fields`.
pub fn text(object: &str, field: &str) -> String {
    format!("{object}.?{field}.optMap(t, dyn(t) == null ? '' : t).orValue('')")
}

/// A CEL list of string literals.
pub fn string_list<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = texts.into_iter().map(|text| format!("'{text}'")).collect();
    format!("[{}]", quoted.join(", "))
}

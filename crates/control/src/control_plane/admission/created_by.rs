//! Who created each pod: the API server writes it into the annotation `berth.dev/created-by`, and nobody in the tenant can change it.
//!
//! | object | annotation |
//! |---|---|
//! | pod that a user creates | the user |
//! | pod that a controller of Kubernetes creates | that of the template that it comes from |
//! | template of a Deployment, ReplicaSet, StatefulSet, DaemonSet, ReplicationController or CronJob | who last changed anything of it |
//! | template of a Job | who created the Job: what runs cannot be changed |
//!
//! The StatefulSet controller makes pods of earlier templates as well, which it keeps in `ControllerRevision`s. Nobody else makes one whose
//! pods would count for another user.
//!
//! A ServiceAccount is a user like any other, except for those of the controllers of Kubernetes. One policy of each pair sets the annotation,
//! the other rejects a request in which a webhook of the tenant has changed it afterwards. Requests for which nothing is to be set match no
//! policy of the first sort, so that they cost little.

use super::static_policies::{
    add_file, add_mutating_file, binding, mutating_binding, mutating_policy, policy, rule, validation,
};
use berth_api::labels;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The file of each folder.
const FILE: &str = "created-by.yaml";
/// End of the names of policies and bindings.
const SUFFIX: &str = "created-by.berth.dev.static.k8s.io";
/// What a team reads.
const DENIED: &str = "the API server sets the annotation berth.dev/created-by, and nobody can change it: remove it from the object, and from \
                      what webhooks of this cluster add";

/// What a team reads that makes a revision with a template of another user.
const DENIED_REVISION: &str = "pods of the revision could count for another user: let the controller create the revision, or let its data replace \
                               the whole template ($patch: replace), with your name in the annotation berth.dev/created-by";

/// What a team reads that asks for a token of a controller.
const DENIED_TOKEN: &str = "the controllers of Kubernetes create pods in the name of other users: nobody but kube-controller-manager has \
                            their tokens";
/// The user that the controller manager is for itself.
pub(in super::super) const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";

/// ServiceAccounts of `kube-system` that create pods and templates from other templates. Nobody acts in their name: `authorization` denies to
/// impersonate them, and the policies below deny their tokens.
pub(in super::super) const CONTROLLERS: [&str; 7] = [
    "cronjob-controller",
    "daemon-set-controller",
    "deployment-controller",
    "job-controller",
    "replicaset-controller",
    "replication-controller",
    "statefulset-controller",
];

/// Resources with a template.
#[derive(Clone, Copy)]
struct Templates {
    /// Part of the names of policies.
    name: &'static str,
    /// Groups and resources.
    resources: &'static [(&'static str, &'static [&'static str])],
    /// Fields that lead to the template.
    path: &'static [&'static str],
    /// Whether who changes the template is who runs it.
    follows_changes: bool,
}

const TEMPLATES: [Templates; 3] = [
    Templates {
        name: "templates",
        resources: &[
            ("", &["replicationcontrollers"]),
            ("apps", &["daemonsets", "deployments", "replicasets", "statefulsets"]),
        ],
        path: &["spec", "template"],
        follows_changes: true,
    },
    Templates {
        name: "jobs",
        resources: &[("batch", &["jobs"])],
        path: &["spec", "template"],
        follows_changes: false,
    },
    Templates {
        name: "cronjobs",
        resources: &[("batch", &["cronjobs"])],
        path: &["spec", "jobTemplate", "spec", "template"],
        follows_changes: true,
    },
];

/// The parts of a pod that a user can write.
const POD: [&str; 4] = ["pods", "pods/ephemeralcontainers", "pods/resize", "pods/status"];

/// A pair of policies: what an annotation must be on some requests.
struct Stamp {
    name: String,
    rules: Vec<Value>,
    /// Fields that lead to the object with the annotation.
    path: &'static [&'static str],
    /// Whether the controllers of Kubernetes may set what they like: they copy it.
    exempts_controllers: bool,
    /// The annotation, empty for none.
    expected: String,
}

/// Adds the policies to the files of an API server.
pub(super) fn for_api_server(files: &mut BTreeMap<String, String>) {
    let (mut setting, mut checking) = (Vec::new(), Vec::new());
    for stamp in stamps() {
        let name = format!("{}.{SUFFIX}", stamp.name);
        setting.extend([stamp.mutating_policy(&name), mutating_binding(&name)]);
        checking.extend([stamp.policy(&name), binding(&name)]);
    }
    let name = format!("bindings.{SUFFIX}");
    checking.extend([policy_of_bindings(&name), binding(&name)]);
    let name = format!("revisions.{SUFFIX}");
    checking.extend([policy_of_revisions(&name), binding(&name)]);
    let name = format!("tokens.{SUFFIX}");
    checking.extend([policy_of_tokens(&name), binding(&name)]);
    let name = format!("secrets.{SUFFIX}");
    checking.extend([policy_of_secrets(&name), binding(&name)]);
    add_mutating_file(files, FILE, &setting);
    add_file(files, FILE, &checking);
}

fn stamps() -> Vec<Stamp> {
    const USER: &str = "request.userInfo.username";
    let mut stamps = vec![
        Stamp {
            name: "new-pods".into(),
            rules: vec![rule("", &["CREATE"], &["pods"])],
            path: &[],
            exempts_controllers: true,
            expected: USER.into(),
        },
        Stamp {
            name: "pods".into(),
            rules: vec![rule("", &["UPDATE"], &POD)],
            path: &[],
            exempts_controllers: false,
            expected: annotation("oldObject", &[]),
        },
    ];
    for templates in TEMPLATES {
        let Templates {
            name,
            resources,
            path,
            follows_changes,
        } = templates;
        let rules = |operation: &str| -> Vec<Value> {
            let all = resources.iter();
            all.map(|(group, resources)| rule(group, &[operation], resources))
                .collect()
        };
        let before = annotation("oldObject", path);
        stamps.extend([
            Stamp {
                name: format!("new-{name}"),
                rules: rules("CREATE"),
                path,
                exempts_controllers: true,
                expected: USER.into(),
            },
            Stamp {
                name: name.into(),
                rules: rules("UPDATE"),
                path,
                exempts_controllers: follows_changes,
                expected: if follows_changes {
                    format!("{} ? {before} : {USER}", is_same_template(path))
                } else {
                    before
                },
            },
        ]);
    }
    stamps
}

impl Stamp {
    fn constraints(&self) -> Value {
        json!({"matchPolicy": "Equivalent", "resourceRules": self.rules})
    }

    /// Whether the annotation of a request is as it must be.
    fn is_right(&self) -> String {
        let is_expected = format!("{} == ({})", annotation("object", self.path), self.expected);
        if self.exempts_controllers {
            format!("{} || {is_expected}", is_controller())
        } else {
            is_expected
        }
    }

    /// Sets the annotation where it is not right.
    fn mutating_policy(&self, name: &str) -> Value {
        let metadata = format!("{}.metadata", at("object", self.path));
        let path: String = self.path.iter().flat_map(|field| ["/", *field]).collect();
        let key = labels::CREATED_BY;
        let pointer = format!("{path}/metadata/annotations/{}", key.replace('/', "~1"));
        // What an update adds to an object without the annotation is removed: it is there, or else it would be right.
        let patch = format!(
            "variables.expected == '' ? [JSONPatch{{op: 'remove', path: '{pointer}'}}] : has({metadata}) && has({metadata}.annotations) ? \
             [JSONPatch{{op: 'add', path: '{pointer}', value: variables.expected}}] : has({metadata}) ? \
             [JSONPatch{{op: 'add', path: '{path}/metadata/annotations', value: {{'{key}': variables.expected}}}}] : \
             [JSONPatch{{op: 'add', path: '{path}/metadata', value: {{'annotations': {{'{key}': variables.expected}}}}}}]"
        );
        let conditions = [("is-not-right", format!("!({})", self.is_right()))];
        let variables = [json!({"name": "expected", "expression": self.expected})];
        mutating_policy(name, &self.constraints(), &conditions, &variables, &patch)
    }

    /// Rejects what has another one.
    fn policy(&self, name: &str) -> Value {
        policy(name, &self.constraints(), &[], &[validation(&self.is_right(), DENIED)])
    }
}

/// A binding of a pod to a node adds its annotations to the pod.
fn policy_of_bindings(name: &str) -> Value {
    let constraints = json!({
        "matchPolicy": "Equivalent",
        "resourceRules": [rule("", &["CREATE"], &["pods/binding", "bindings"])],
    });
    let denied = validation(&format!("{} == ''", annotation("object", &[])), DENIED);
    policy(name, &constraints, &[], &[denied])
}

/// A revision is part of an object, as a patch, and its data cannot be changed. The StatefulSet controller takes each one with the labels of its
/// pods, whoever made it. Other controllers keep in revisions what they like; those that keep templates, keep them as it does. But nothing
/// may be merged into a template that names somebody else, and only a ServiceAccount may leave the name out.
fn policy_of_revisions(name: &str) -> Value {
    let constraints = json!({
        "matchPolicy": "Equivalent",
        "resourceRules": [rule("apps", &["CREATE"], &["controllerrevisions"])],
    });
    let data = "object.?data.orValue({})";
    let annotation = annotation("variables.template", &[]);
    let variables = [
        json!({"name": "spec", "expression": format!("type({data}) == map ? {data}.?spec.orValue({{}}) : {{}}")}),
        json!({"name": "template", "expression": "type(variables.spec) == map ? variables.spec.?template.orValue({}) : {}"}),
    ];
    // The decoder of the controller takes keys in any case.
    let is_only = |map: &str, key: &str| format!("{map}.all(k, k == '{key}' || !k.matches('(?i)^{key}$'))");
    let has_template = "type(variables.spec) == map && 'template' in variables.spec";
    let names_user = format!(
        "{annotation} == request.userInfo.username || \
         ({annotation} == '' && request.userInfo.username.startsWith('system:serviceaccount:'))"
    );
    let is_whole = format!(
        "variables.template[?'$patch'].orValue('') == 'replace' && variables.template.all(k, k in ['$patch', 'metadata', 'spec']) && {}",
        is_only("variables.template.?metadata.orValue({})", "annotations"),
    );
    let has_exact_keys = format!(
        "(type({data}) != map || {}) && (type(variables.spec) != map || {})",
        is_only(data, "spec"),
        is_only("variables.spec", "template"),
    );
    let allowed = format!(
        "{} || ({has_exact_keys} && (!({has_template}) || ({is_whole} && ({names_user}))))",
        is_controller()
    );
    policy(name, &constraints, &variables, &[validation(&allowed, DENIED_REVISION)])
}

/// Tokens of the controllers are for the controller manager, which runs them.
fn policy_of_tokens(name: &str) -> Value {
    let constraints = json!({
        "matchPolicy": "Equivalent",
        "resourceRules": [rule("", &["CREATE"], &["serviceaccounts/token"])],
    });
    let allowed = format!(
        "request.namespace != 'kube-system' || !(request.name in [{}]) || request.userInfo.username == '{CONTROLLER_MANAGER}'",
        controllers("")
    );
    policy(name, &constraints, &[], &[validation(&allowed, DENIED_TOKEN)])
}

/// The controller manager writes a token into each Secret of this type.
fn policy_of_secrets(name: &str) -> Value {
    let constraints = json!({
        "matchPolicy": "Equivalent",
        "resourceRules": [rule("", &["CREATE", "UPDATE"], &["secrets"])],
    });
    let allowed = format!(
        "request.namespace != 'kube-system' || object.?type.orValue('') != 'kubernetes.io/service-account-token' || \
         !(object.?metadata.?annotations[?'kubernetes.io/service-account.name'].orValue('') in [{}])",
        controllers("")
    );
    policy(name, &constraints, &[], &[validation(&allowed, DENIED_TOKEN)])
}

fn at(object: &str, path: &[&str]) -> String {
    std::iter::once(object)
        .chain(path.iter().copied())
        .collect::<Vec<_>>()
        .join(".")
}

/// The annotation of an object or a template; empty without one.
fn annotation(object: &str, path: &[&str]) -> String {
    let annotations = optional(object, path, "annotations");
    format!("{annotations}[?'{}'].orValue('')", labels::CREATED_BY)
}

/// A map in the metadata of an object or a template, as an optional value.
fn optional(object: &str, path: &[&str], map: &str) -> String {
    format!("{}.?metadata.?{map}", at(object, path))
}

/// The names of the controllers as a list of CEL, each after a prefix.
fn controllers(prefix: &str) -> String {
    CONTROLLERS.map(|name| format!("'{prefix}{name}'")).join(", ")
}

fn is_controller() -> String {
    format!(
        "request.userInfo.username in [{}]",
        controllers("system:serviceaccount:kube-system:")
    )
}

/// Whether an update leaves a template as it was, apart from the annotation.
fn is_same_template(path: &[&str]) -> String {
    let (new, old) = (at("object", path), at("oldObject", path));
    let map = |object: &str, map: &str| format!("{}.orValue({{}})", optional(object, path, map));
    let (new_annotations, old_annotations) = (map("object", "annotations"), map("oldObject", "annotations"));
    let key = labels::CREATED_BY;
    format!(
        "{new}.spec == {old}.spec && {} == {} && \
         {new_annotations}.all(k, k == '{key}' || (k in {old_annotations} && {old_annotations}[k] == {new_annotations}[k])) && \
         {old_annotations}.all(k, k == '{key}' || k in {new_annotations})",
        map("object", "labels"),
        map("oldObject", "labels"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stamp_is_set_and_checked_by_the_same_expression() {
        let stamps = stamps();
        assert_eq!(stamps.len(), 8);
        for stamp in &stamps {
            let name = format!("{}.{SUFFIX}", stamp.name);
            let (sets, checks) = (stamp.mutating_policy(&name), stamp.policy(&name));
            assert_eq!(
                sets["spec"]["matchConstraints"], checks["spec"]["matchConstraints"],
                "{name}"
            );
            let expression = checks["spec"]["validations"][0]["expression"].as_str().unwrap();
            let conditions = &sets["spec"]["matchConditions"];
            assert_eq!(conditions[0]["expression"], format!("!({expression})"), "{name}");
            assert!(expression.contains(&stamp.expected), "{expression}");
        }
    }

    #[test]
    fn templates_of_cron_jobs_are_found_below_those_of_jobs() {
        let path = TEMPLATES[2].path;
        assert_eq!(at("object", path), "object.spec.jobTemplate.spec.template");
        assert_eq!(
            annotation("oldObject", path),
            "oldObject.spec.jobTemplate.spec.template.?metadata.?annotations[?'berth.dev/created-by'].orValue('')"
        );
    }
}

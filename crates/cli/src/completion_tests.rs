use super::*;
use clap::CommandFactory as _;
use serde_json::json;

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

fn complete(line: &str) -> String {
    let words = line.split(' ').map(OsString::from).collect();
    complete_for_kubectl(crate::args::Arguments::command(), words)
}

#[test]
fn kubectl_gets_candidates_with_their_meaning() {
    let text = complete("li");
    assert!(text.starts_with("list\tList the tenants"), "{text}");
    assert!(text.ends_with("\n:4\n"), "{text}");
    assert!(complete("").contains("\ncreate\t") || complete("").starts_with("create\t"));
    assert!(complete("get -o js").starts_with("json\t"), "{}", complete("get -o js"));
    assert!(complete("dev st").starts_with("status\t"));
    assert_eq!(complete("nothing-like-this"), ":4\n");
    assert!(complete_for_kubectl(crate::args::Arguments::command(), Vec::new()).contains("create\t"));
}

#[test]
fn each_name_that_begins_so_is_offered_once() {
    let names = || ["team-b", "team-a", "prod", "team-b"].map(str::to_owned).to_vec();
    assert_eq!(names_that_begin(names(), "te"), ["team-a", "team-b"]);
    assert_eq!(names_that_begin(names(), "").len(), 3);
    assert!(names_that_begin(names(), "x").is_empty());
}

#[test]
fn names_of_the_host_are_completed() {
    let command = crate::args::Arguments::command();
    let has_completer = |path: &[&str], argument: &str| {
        let command = path
            .iter()
            .try_fold(&command, |command, name| command.find_subcommand(name));
        let mut arguments = command.unwrap().get_arguments();
        let argument = arguments.find(|found| found.get_id().as_str() == argument);
        argument.unwrap().get::<ArgValueCompleter>().is_some()
    };
    let cases: [(&[&str], &str); 7] = [
        (&[], "context"),
        (&[], "namespace"),
        (&["create"], "class"),
        (&["delete"], "names"),
        (&["explain", "node"], "node"),
        (&["sleep"], "name"),
        (&["disconnect"], "name"),
    ];
    for (path, argument) in cases {
        assert!(has_completer(path, argument), "{path:?} {argument}");
    }
    assert!(!has_completer(&["create"], "ttl"));
}

#[test]
fn flags_before_the_separator_name_the_host() {
    let parse = |line: &str| parse_host_arguments(&words(line));
    let found = parse("berth -n team --context=prod get --kubeconfig /k v");
    assert_eq!(found.namespace.as_deref(), Some("team"));
    assert_eq!(found.context.as_deref(), Some("prod"));
    assert_eq!(found.kubeconfig, Some("/k".into()));
    assert_eq!(parse("berth get -nteam v").namespace.as_deref(), Some("team"));
    assert_eq!(parse("berth get --namespace=a -n=b").namespace.as_deref(), Some("a"));
    assert_eq!(parse("berth connect v -- kubectl -n other").namespace, None);
    assert_eq!(parse("berth get -n").namespace, None);
    assert_eq!(parse("berth get --home /h").home, PathBuf::from("/h"));
}

#[test]
fn the_words_of_the_user_are_behind_the_separator() {
    assert_eq!(words_of_user(&words("/bin/berth -- berth get v")), words("berth get v"));
    assert_eq!(
        words_of_user(&words("/bin/kubectl_complete-berth get v"))[1..],
        words("get v")
    );
    assert!(words_of_user(&words("berth")).is_empty());
}

#[test]
fn snapshots_are_those_of_the_tenant_that_is_set_back() {
    let of = |line: &str| restored_tenant(&words(line), "team").map(|name| name.to_string());
    assert_eq!(of("berth snapshot restore other/vision b"), Some("other/vision".into()));
    assert_eq!(of("berth snapshot restore -y vision"), Some("team/vision".into()));
    assert_eq!(
        of("berth snapshot restore -n a --timeout 5m --wait vision b"),
        Some("team/vision".into())
    );
    assert_eq!(of("berth snapshot restore /etc/hosts b"), None);
    assert_eq!(of("berth snapshot restore"), None);
    assert_eq!(of("berth --home a/b snapshot delete b"), None);
    let snapshot = |name: &str, phase: &str| -> TenantSnapshot {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot", "metadata": {"name": name, "namespace": "team"},
            "spec": {"tenantClusterName": "vision"}, "status": {"phase": phase},
        }))
        .unwrap()
    };
    let snapshots = [
        snapshot("nightly", "Completed"),
        snapshot("before", "Failed"),
        snapshot("night", "Running"),
    ];
    let vision = TenantName::parse("team/vision", "").unwrap();
    let speech = TenantName::parse("team/speech", "").unwrap();
    assert!(snapshot_candidates(&snapshots, Some(&speech), "ni").is_empty());
    assert_eq!(snapshot_candidates(&snapshots, Some(&vision), "").len(), 3);
    let found = snapshot_candidates(&snapshots, None, "ni");
    let expected = [("night", "Running of vision"), ("nightly", "Completed of vision")];
    assert_eq!(found, expected.map(|(name, help)| (name.to_owned(), help.to_owned())));
}

#[test]
fn tenants_of_other_namespaces_have_their_namespace() {
    let tenant = |namespace: &str, name: &str| -> TenantCluster {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "spec": {},
            "metadata": {"name": name, "namespace": namespace}, "status": {"phase": "Ready"},
        }))
        .unwrap()
    };
    let tenants = [
        tenant("team", "vision"),
        tenant("team", "video"),
        tenant("other", "vision"),
    ];
    let names = |current: &str| -> Vec<String> {
        let found = candidates_of(&tenants, "team", current);
        found.into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(names(""), ["other/vision", "video", "vision"]);
    assert_eq!(names("vi"), ["video", "vision"]);
    assert_eq!(names("ot"), ["other/vision"]);
    assert_eq!(names("team/v"), ["team/video", "team/vision"]);
    assert_eq!(
        candidates_of(&tenants, "team", "vid"),
        [("video".to_owned(), "Ready".to_owned())]
    );
}

use super::*;
use std::fs;
use tempfile::TempDir;

/// A node with `criu`, whose reports go to a file in the folder.
fn node_at_risk() -> (TempDir, Node) {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::new(folder.path().join("node"), []).reporting_to(folder.path().join("report"));
    node.write("/usr/sbin/criu", "");
    (folder, node)
}

fn arguments(all: &[&str]) -> Vec<String> {
    all.iter().map(|argument| (*argument).to_owned()).collect()
}

fn reported(folder: &TempDir) -> Option<String> {
    fs::read_to_string(folder.path().join("report")).ok()
}

#[test]
fn risks_are_reported_with_their_names() {
    let (folder, node) = node_at_risk();
    let message = report(&node, &[]).unwrap().unwrap();
    assert!(
        message.starts_with("risks: CheckpointRestore: /usr/sbin/criu is installed"),
        "{message}"
    );
    let reported = reported(&folder).unwrap();
    assert!(
        reported.starts_with("risk: CheckpointRestore: /usr/sbin/criu"),
        "{reported}"
    );
    assert_eq!(reported.lines().count(), 1, "{reported}");
    assert!(
        report(&Node::new(node.root(), []), &[]).unwrap().is_some(),
        "nobody reads a report"
    );
}

#[test]
fn a_node_without_risks_reports_that() {
    let (folder, node) = node_at_risk();
    fs::remove_file(node.path("/usr/sbin/criu")).unwrap();
    for refuses in [&[] as &[&str], &[REFUSE]] {
        assert_eq!(report(&node, &arguments(refuses)).unwrap(), None);
        assert_eq!(reported(&folder).as_deref(), Some(NO_RISK));
    }
}

#[test]
fn a_pool_can_refuse_risks_and_accept_some() {
    let (folder, node) = node_at_risk();
    let error = report(&node, &arguments(&[REFUSE])).unwrap_err().to_string();
    assert!(error.starts_with("CheckpointRestore: "), "{error}");
    assert_eq!(
        reported(&folder),
        None,
        "the output of the container is its message then"
    );
    let accepts = arguments(&[REFUSE, "--accept-risk=CheckpointRestore"]);
    assert_eq!(report(&node, &accepts).unwrap(), None);
    node.write("/etc/kubernetes/pki/sa.key", "");
    let error = report(&node, &accepts).unwrap_err().to_string();
    assert!(error.starts_with("AdminCredentials: "), "{error}");
}

#[test]
fn short_names_matter_only_where_images_are_listed() {
    let (_folder, node) = node_at_risk();
    fs::remove_file(node.path("/usr/sbin/criu")).unwrap();
    node.write("/run/crio/crio.sock", "");
    node.write(
        "/etc/containers/registries.conf",
        "unqualified-search-registries = [\"q.example\"]\n",
    );
    assert_eq!(report(&node, &[]).unwrap(), None);
    let message = report(&node, &arguments(&[IMAGES_ARE_LISTED])).unwrap().unwrap();
    assert!(message.starts_with("risks: ShortNames: "), "{message}");
}

#[test]
fn credentials_for_registries_matter_only_where_every_image_is_allowed() {
    let (_folder, node) = node_at_risk();
    fs::remove_file(node.path("/usr/sbin/criu")).unwrap();
    let config = "{\"auths\": {\"q.example\": {\"auth\": \"c2VjcmV0\"}}}";
    node.write("/var/lib/kubelet/config.json", config);
    assert_eq!(report(&node, &arguments(&[IMAGES_ARE_LISTED])).unwrap(), None);
    let message = report(&node, &arguments(&[ALL_IMAGES])).unwrap().unwrap();
    assert!(message.starts_with("risks: RegistryCredentials: "), "{message}");
}

#[test]
fn what_cannot_be_checked_is_a_risk() {
    let (_folder, node) = node_at_risk();
    fs::remove_file(node.path("/usr/sbin/criu")).unwrap();
    // In place of the folder of processes.
    node.write("/proc", "");
    let message = report(&node, &[]).unwrap().unwrap();
    assert!(message.contains("CheckpointRestore: not checked: "), "{message}");
}

#[test]
fn only_files_of_a_usual_size_are_read() {
    let (_folder, node) = node_at_risk();
    assert_eq!(read(&node, "/usr/sbin").unwrap(), None, "a folder is no file");
    assert_eq!(read(&node, "/usr/sbin/criu/more").unwrap(), None);
    assert_eq!(read(&node, "/nothing").unwrap(), None);
    let length = usize::try_from(MOST_BYTES).unwrap();
    node.write("/long", &"a".repeat(length + 1));
    assert_eq!(read(&node, "/long").unwrap().unwrap().len(), length);
}

#[test]
fn folders_with_too_many_entries_are_not_read() {
    let (_folder, node) = node_at_risk();
    assert_eq!(names_in(&node, "/nothing").unwrap(), [""; 0]);
    for number in 0..MOST_ENTRIES {
        node.write(&format!("/many/{number}"), "");
    }
    assert_eq!(names_in(&node, "/many").unwrap().len(), MOST_ENTRIES);
    node.write("/many/more", "");
    let error = names_in(&node, "/many").unwrap_err().to_string();
    assert!(error.ends_with("/many has more than 200 entries"), "{error}");
}

#[test]
fn a_report_has_some_text_of_each_risk() {
    assert_eq!(shorten(&["A: a;\nb".to_owned()]), ["A: a  b"]);
    let long: Vec<String> = ["A", "B", "C", "D", "E"]
        .map(|name| format!("{name}: {}", "ä".repeat(5_000)))
        .to_vec();
    for number in 1..=long.len() {
        let shortened = shorten(&long[..number]);
        let lines: Vec<String> = shortened.iter().map(|risk| format!("{RISK}{risk}")).collect();
        assert!(lines.join("\n").len() <= MOST_OF_REPORT + number, "{number}");
        assert!(shortened.join("; ").chars().count() <= MOST_OF_REPORT, "{number}");
        for (risk, whole) in shortened.iter().zip(&long) {
            let text = risk.strip_suffix('…').unwrap();
            assert!(text.len() > 100 && whole.starts_with(text), "{risk}");
        }
    }
}

#[test]
fn long_lists_are_cut() {
    let all: Vec<String> = ('a'..='f').map(String::from).collect();
    assert_eq!(some_of(&all), "a, b, c, d and 2 more");
    assert_eq!(some_of(&all[..4]), "a, b, c, d");
}
